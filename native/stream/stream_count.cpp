#include "stream/stream_count.h"

#include <algorithm>
#include <utility>

namespace bluecomm::stream {

StreamCount::User::~User() {
  if (counts_) --count_->blocked_users_;
}

void StreamCount::User::update(const Load& load, Clock::time_point now) {
  StreamCount& count = *count_;
  if (!count.mutex_.try_lock()) return;
  const LockGuard lock(count.mutex_, std::adopt_lock);
  if (count.settled_) return;
  count.count(*this, load, now);
  const bool counts = is_informative(load, now);
  if (counts != counts_) count.blocked_users_ += counts ? 1 : -1;
  counts_ = counts;
  bytes_before_ = load.nbytes;
}

bool StreamCount::User::lacks_streams(std::size_t streams,
                                      Clock::time_point now) const {
  const std::size_t used = count_->used_;
  if (streams >= used) return false;
  const bool still_opening = now - incomplete_since_.value_or(now) < kOpening;
  return still_opening || streams <= used / 2;
}

bool StreamCount::User::is_informative(const Load& load, Clock::time_point now) {
  if (!load.blocked || load.nbytes != bytes_before_) moved_at_ = now;
  if (load.streams >= count_->used_) {
    incomplete_since_.reset();
  } else if (!incomplete_since_) {
    incomplete_since_ = now;
  }
  return load.blocked && now - moved_at_ <= kMaxPause &&
         now - incomplete_since_.value_or(now) <= kMaxPause;
}

void StreamCount::count(const User& user, const Load& load, Clock::time_point now) {
  const Clock::duration passed = now - std::exchange(since_, now);
  if (blocked_users_ == 0) return;
  wanted_ = max_;
  // Starts over if this process did not run for a while, or if the link does not have
  // its streams yet, or has bytes on others.
  const bool drains = !load.drained && now - changed_at_ <= kMaxPause;
  const bool waits = user.lacks_streams(load.streams, now) || drains;
  if (passed > kMaxPause || (user.counts_ && waits)) return start_over();
  blocked_time_ += passed;
  if (user.counts_ && blocked_time_ > Clock::duration::zero()) {
    // The number may fall a little, as the kernel may count more bytes than were
    // written.
    blocked_bytes_ += load.nbytes - std::min(load.nbytes, user.bytes_before_);
  }
  if (blocked_time_ < kTrial) return;
  // If no byte was acknowledged, the peer did not run.
  if (blocked_bytes_ > 0) {
    const double seconds = std::chrono::duration<double>(blocked_time_).count();
    finish_trial(static_cast<double>(blocked_bytes_) / seconds, now);
  }
  start_over();
}

void StreamCount::start_over() {
  blocked_time_ = -kSettle;
  blocked_bytes_ = 0;
}

// Uses the higher rate of two trials. If the other direction is busy too,
// acknowledgments come late, so a trial may measure less than the true rate, but hardly
// more.
void StreamCount::finish_trial(double rate, Clock::time_point now) {
  const bool hopeless = used_ < best_ && 2 * rate < best_rate_;
  if (!first_rate_ && !hopeless) {
    first_rate_ = rate;
    return;
  }
  rate = std::max(rate, first_rate_.value_or(0));
  first_rate_.reset();
  const std::size_t used = used_;
  if (used == best_) {
    judge_best(rate);
  } else {
    judge_fewer(rate);
  }
  if (used_ != used) changed_at_ = now;
  // Links that open later need no more streams than these.
  if (settled_) wanted_ = used_.load();
}

void StreamCount::judge_best(double rate) {
  best_rate_ = rate;
  if (!fewer_) return try_fewer();
  const Fewer fewer = *std::exchange(fewer_, std::nullopt);
  if (kGain * fewer.rate > rate) return adopt(fewer.number, fewer.rate);
  too_few_ = fewer.number;
  try_fewer();
}

void StreamCount::judge_fewer(double rate) {
  if (kGain * rate > best_rate_) return adopt(used_, rate);
  fewer_ = {used_, rate};
  used_ = best_;
}

void StreamCount::adopt(std::size_t number, double rate) {
  used_ = best_ = number;
  best_rate_ = std::max(rate, best_rate_);
  try_fewer();
}

void StreamCount::try_fewer() {
  const std::size_t next = too_few_ == 0 ? 1 : best_ / 2;
  settled_ = best_ == 1 || next <= too_few_;
  if (!settled_) used_ = next;
}

}  // namespace bluecomm::stream
