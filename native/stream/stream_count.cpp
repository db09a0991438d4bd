#include "stream/stream_count.h"

#include <algorithm>

namespace bluecomm::stream {

void StreamCount::update(bool blocked, std::uint64_t bytes, std::size_t count,
                         Clock::time_point now) {
  if (settled_ || max_ == 1) return;
  // Until the last increase is there, nothing is learnt about it.
  if (was_blocked_ && count >= wanted_) {
    if (blocked_time_ >= Clock::duration::zero()) {
      blocked_bytes_ += bytes - bytes_before_;
      blocked_time_ += now - since_;
    } else {
      blocked_time_ = std::min(blocked_time_ + (now - since_), Clock::duration::zero());
    }
  }
  was_blocked_ = blocked;
  since_ = now;
  bytes_before_ = bytes;
  if (blocked_time_ < kTrial) return;
  judge(static_cast<double>(blocked_bytes_) /
        std::chrono::duration<double>(blocked_time_).count());
  blocked_time_ = -kSettle;
  blocked_bytes_ = 0;
}

void StreamCount::judge(double rate) {
  const bool gained = rate >= kGain * best_rate_;
  if (gained) {
    best_ = wanted_;
    best_rate_ = rate;
  }
  settled_ = wanted_ == max_ || (!gained && wanted_ >= kBlind);
  if (!settled_) wanted_ = std::min(2 * wanted_, max_);
  used_ = settled_ ? best_ : wanted_;
}

}  // namespace bluecomm::stream
