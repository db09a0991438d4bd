#include "device/copy_in_parts.h"

namespace bluecomm::device {

std::optional<Status> CopyInParts::poll() {
  const LockGuard lock(mutex_);
  while (true) {
    std::optional<Status> ended = parts_[current_].point->poll();
    const bool is_last = current_ + 1 == parts_.size();
    if (!ended || !ended->ok() || is_last) return ended;
    parts_[current_].point.reset();  // polled for the last time
    ++current_;
  }
}

std::size_t CopyInParts::written() {
  const LockGuard lock(mutex_);
  return current_ == 0 ? 0 : parts_[current_ - 1].end;
}

}  // namespace bluecomm::device
