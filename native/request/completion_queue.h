#pragma once

#include <cstddef>
#include <optional>
#include <vector>

#include "common/mutex.h"
#include "request/base_request.h"

namespace bluecomm {

// The watched requests that have ended, for one thread that waits for them.
//
// Thread-safe. It has a mutex of its own, which nobody holds for longer than it takes
// to copy a few ids: the thread that ends a request never waits for the reader, and the
// reader never waits for the progress lock.
class CompletionQueue {
 public:
  // Announces an id, which push() will add.
  void expect();
  void push(RequestId id);

  // Returns whether take() has something to return.
  bool ready() const;
  // Waits until ready() or until an id is expected, which somebody has to bring about,
  // or until `deadline`. Returns whether ids are expected and the queue is not ready.
  bool wait(Clock::time_point deadline);
  // Returns the ids in the order in which the requests ended; nothing once the queue is
  // closed and empty.
  std::optional<std::vector<RequestId>> take();

  // Ends the wait of the reader, which then takes what is left.
  void close();

 private:
  bool is_ready() const REQUIRES(mutex_) { return !ids_.empty() || closed_; }

  mutable Mutex mutex_;
  ConditionVariable changed_;
  std::vector<RequestId> ids_ GUARDED_BY(mutex_);
  std::size_t expected_ GUARDED_BY(mutex_) = 0;
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace bluecomm
