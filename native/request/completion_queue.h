#pragma once

#include <optional>
#include <vector>

#include "common/mutex.h"
#include "request/base_request.h"

namespace bluecomm {

// The watched requests that have ended, for a thread that waits for them.
//
// Thread-safe. It has a mutex of its own, which nobody holds for longer than it takes
// to copy a few ids: the thread that ends a request never waits for the reader, and the
// reader never waits for the progress lock.
class CompletionQueue {
 public:
  void push(RequestId id);

  // Waits for ids and returns them in the order in which the requests ended. Returns an
  // empty list at `deadline`, and nothing once the queue is closed and empty.
  std::optional<std::vector<RequestId>> take(Clock::time_point deadline);

  // Ends the wait of the reader, which then takes what is left.
  void close();

 private:
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<RequestId> ids_ GUARDED_BY(mutex_);
  bool closed_ GUARDED_BY(mutex_) = false;
};

}  // namespace bluecomm
