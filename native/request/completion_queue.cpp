#include "request/completion_queue.h"

#include <utility>

namespace bluecomm {

void CompletionQueue::expect() {
  {
    const LockGuard lock(mutex_);
    ++expected_;
  }
  changed_.notify_one();
}

void CompletionQueue::push(RequestId id) {
  {
    const LockGuard lock(mutex_);
    --expected_;
    ids_.push_back(id);
  }
  changed_.notify_one();
}

bool CompletionQueue::ready() const {
  const LockGuard lock(mutex_);
  return is_ready();
}

bool CompletionQueue::wait(Clock::time_point deadline) {
  UniqueLock lock(mutex_);
  while (!is_ready() && expected_ == 0 && Clock::now() < deadline) {
    changed_.wait_until(lock, deadline);
  }
  return !is_ready() && expected_ > 0;
}

std::optional<std::vector<RequestId>> CompletionQueue::take() {
  const LockGuard lock(mutex_);
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
