#include "stream/stream_count.h"

#include <algorithm>
#include <utility>

namespace bluecomm::stream {

StreamCount::User::~User() {
  if (counts_) --count_->blocked_users_;
}

void StreamCount::User::update(bool blocked, std::uint64_t bytes, std::size_t streams,
                               Clock::time_point now) {
  StreamCount& count = *count_;
  if (!count.mutex_.try_lock()) return;
  const LockGuard lock(count.mutex_, std::adopt_lock);
  if (count.settled_) return;
  count.count(*this, bytes, streams, now);
  const bool counts = is_informative(blocked, bytes, streams, now);
  if (counts != counts_) count.blocked_users_ += counts ? 1 : -1;
  counts_ = counts;
  bytes_before_ = bytes;
}

bool StreamCount::User::lacks_streams(std::size_t streams,
                                      Clock::time_point now) const {
  const std::size_t used = count_->used_;
  if (streams >= used) return false;
  const bool still_opening = now - incomplete_since_.value_or(now) < kOpening;
  return still_opening || streams <= used / 2;
}

bool StreamCount::User::is_informative(bool blocked, std::uint64_t bytes,
                                       std::size_t streams, Clock::time_point now) {
  if (!blocked || bytes != bytes_before_) moved_at_ = now;
  if (streams >= count_->used_) {
    incomplete_since_.reset();
  } else if (!incomplete_since_) {
    incomplete_since_ = now;
  }
  return blocked && now - moved_at_ <= kMaxPause &&
         now - incomplete_since_.value_or(now) <= kMaxPause;
}

void StreamCount::count(const User& user, std::uint64_t bytes, std::size_t streams,
                        Clock::time_point now) {
  const Clock::duration passed = now - std::exchange(since_, now);
  if (blocked_users_ == 0) return;
  if (!descending_) wanted_ = std::max(wanted_.load(), std::min(kUnconditional, max_));
  // Starts over if this process did not run for a while, or if the link does not have
  // its streams yet.
  if (passed > kMaxPause || (user.counts_ && user.lacks_streams(streams, now))) {
    return start_over();
  }
  blocked_time_ += passed;
  if (user.counts_ && blocked_time_ > Clock::duration::zero()) {
    // `bytes` may fall a little, as the kernel may count more bytes than were written.
    blocked_bytes_ += bytes - std::min(bytes, user.bytes_before_);
  }
  if (blocked_time_ < kTrial) return;
  // If no byte was acknowledged, the peer did not run.
  if (blocked_bytes_ > 0) {
    evaluate(static_cast<double>(blocked_bytes_) /
             std::chrono::duration<double>(blocked_time_).count());
  }
  start_over();
}

void StreamCount::start_over() {
  blocked_time_ = -kSettle;
  blocked_bytes_ = 0;
}

void StreamCount::evaluate(double rate) {
  if (descending_) {
    descend(rate);
  } else {
    climb(rate);
  }
  // Links that open later need no more streams than these.
  if (settled_) wanted_ = used_.load();
}

void StreamCount::climb(double rate) {
  const bool gained = rate >= kGain * best_rate_;
  if (gained) {
    best_ = used_;
    best_rate_ = rate;
  }
  descending_ = used_ == max_ || (!gained && used_ >= kUnconditional);
  if (descending_) {
    used_ = best_;
    best_rate_ = 0;
    settled_ = best_ == 1;
  } else {
    used_ = std::min(2 * used_, max_);
    wanted_ = std::max(wanted_.load(), used_.load());
  }
}

// Uses the higher rate of two trials. If the other direction is busy too,
// acknowledgments come late, so a trial may measure less than the true rate, but hardly
// more.
void StreamCount::descend(double rate) {
  if (!first_rate_) {
    first_rate_ = rate;
    return;
  }
  rate = std::max(rate, *first_rate_);
  first_rate_.reset();
  const bool confirmed = best_rate_ == 0;
  if (!confirmed && kGain * rate <= best_rate_) {
    used_ = best_;
    settled_ = true;
    return;
  }
  best_ = used_;
  best_rate_ = confirmed ? rate : std::max(rate, best_rate_);
  settled_ = best_ == 1;
  if (!settled_) used_ = best_ / 2;
}

}  // namespace bluecomm::stream
