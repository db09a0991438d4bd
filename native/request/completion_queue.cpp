#include "request/completion_queue.h"

#include <utility>

namespace bluecomm {

void CompletionQueue::push(RequestId id) {
  {
    const LockGuard lock(mutex_);
    ids_.push_back(id);
  }
  changed_.notify_one();
}

std::optional<std::vector<RequestId>> CompletionQueue::take(
    Clock::time_point deadline) {
  UniqueLock lock(mutex_);
  while (ids_.empty() && !closed_ && Clock::now() < deadline) {
    changed_.wait_until(lock, deadline);
  }
  if (ids_.empty() && closed_) return std::nullopt;
  return std::exchange(ids_, {});
}

void CompletionQueue::close() {
  {
    const LockGuard lock(mutex_);
    closed_ = true;
  }
  changed_.notify_all();
}

}  // namespace bluecomm
