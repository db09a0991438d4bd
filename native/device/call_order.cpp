#include "device/call_order.h"

#include <algorithm>

namespace bluecomm::device {

std::uint64_t CallOrder::propose() {
  proposed_.insert(++clock_);
  return clock_;
}

CallNumber CallOrder::decide(std::span<const std::uint64_t> proposals, int first) {
  for (const std::uint64_t time : proposals) clock_ = std::max(clock_, time);
  proposed_.insert(clock_);
  return {++clock_, first};
}

void CallOrder::settle(std::uint64_t proposal, CallNumber number) {
  withdraw(proposal);
  clock_ = std::max(clock_, number.time);
}

void CallOrder::withdraw(std::uint64_t proposal) {
  if (const auto found = proposed_.find(proposal); found != proposed_.end()) {
    proposed_.erase(found);
  }
}

bool CallOrder::is_settled(CallNumber number) const {
  return proposed_.empty() || *proposed_.begin() >= number.time;
}

}  // namespace bluecomm::device
