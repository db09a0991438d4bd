#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>

#include "common/mutex.h"
#include "request/base_request.h"

namespace bluecomm {

// A change of the members, as one rank learns of it.
struct MemberChange {
  enum class ChangeKind : std::uint8_t {
    kGone,      // the members go on without `rank`; in the same order on all of them
    kHeld,      // this rank reaches too few members to go on
    kReleased,  // it reaches enough again
    kExcluded,  // the members go on without this rank
    kSplit,     // this rank goes on in a lineage of its own; kGone of the others came
                // before
  };
  ChangeKind kind = ChangeKind::kGone;
  int rank = -1;  // of kGone
  // With kGone: "dead", "left", "stopped", "silent", "broken", "apart" (this rank has
  // left it behind), or "". With kSplit: the name of the lineage.
  std::string cause;
  double silent_s = 0;  // of kGone: for how long nothing has arrived; 0 if unknown
  std::string text;     // a sentence about the rank
};

// The changes that the program has not been told of yet, for one thread that waits for
// them. Thread-safe.
class MemberNews {
 public:
  void push(MemberChange change) {
    {
      const LockGuard lock(mutex_);
      changes_.push_back(std::move(change));
    }
    changed_.notify_one();
  }

  // Waits for the next change until `deadline`. Returns nothing at the deadline, or if
  // the queue is closed and empty.
  std::optional<MemberChange> next(Clock::time_point deadline) {
    UniqueLock lock(mutex_);
    while (changes_.empty() && !closed_ && Clock::now() < deadline) {
      changed_.wait_until(lock, deadline);
    }
    if (changes_.empty()) return std::nullopt;
    MemberChange first = std::move(changes_.front());
    changes_.pop_front();
    return first;
  }

  void close() {
    {
      const LockGuard lock(mutex_);
      closed_ = true;
    }
    changed_.notify_all();
  }

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::deque<MemberChange> changes_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace bluecomm
