#include "device/copy_in_parts.h"

namespace bluecomm::device {
namespace {

constexpr std::size_t kPart = std::size_t{4} << 20;
constexpr std::size_t kMaxParts = 64;

}  // namespace

std::size_t part_of(std::size_t nbytes) {
  const std::size_t parts = (nbytes + kPart - 1) / kPart;
  return (parts + kMaxParts - 1) / kMaxParts * kPart;
}

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
