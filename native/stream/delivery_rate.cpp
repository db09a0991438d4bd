#include "stream/delivery_rate.h"

#include <algorithm>
#include <utility>

namespace bluecomm::stream {
namespace {

constexpr double kMuchFaster = 2;
// A safety margin: rates are estimates, and a late chunk delays the next messages too.
constexpr double kMargin = 2;

}  // namespace

void DeliveryRate::update(const Backlog& backlog, Clock::time_point now) {
  held_ = backlog.held;
  is_far_ = backlog.is_far;
  // The kernel may count more bytes than were written.
  const std::uint64_t acknowledged =
      backlog.sent - std::min<std::uint64_t>(backlog.sent, held_);
  acknowledged_ = std::max(acknowledged_, acknowledged);
  was_idle_ |= held_ == 0;
  const bool is_over = begun_ && now - since_ >= kSpan;
  if (is_over) {
    const auto count = static_cast<double>(acknowledged_ - acknowledged_before_);
    const double rate = count / std::chrono::duration<double>(now - since_).count();
    const bool is_limit = backlog.unsent > 0 && !was_idle_;
    if (is_limit || rate > rate_) measure(rate, now);
    is_limit_ |= is_limit;
  }
  if (now - measured_at_ >= kForget) {
    rate_ = 0;
    if (std::exchange(is_limit_, false)) unknown_from_ = acknowledged_;
  }
  // An interval begins with its first byte, or when the last one ends.
  const bool has_bytes = held_ > 0 || acknowledged_ > acknowledged_before_;
  if (begun_ && !is_over && has_bytes) return;
  begun_ = true;
  was_idle_ = false;
  since_ = now;
  acknowledged_before_ = acknowledged_;
}

void DeliveryRate::measure(double rate, Clock::time_point now) {
  rate_ = rate_ == 0 ? rate : (rate_ + rate) / 2;
  measured_at_ = now;
}

bool leaves_chunk_to_others(std::span<const DeliveryRate* const> streams,
                            std::size_t index, std::size_t pending, std::size_t chunk) {
  const DeliveryRate& own = *streams[index];
  if (own.is_far()) return false;
  double rate = 0;
  double before = static_cast<double>(pending);
  for (const DeliveryRate* other : streams) {
    if (other == &own || other->rate() < kMuchFaster * own.rate()) continue;
    rate += other->rate();
    before += static_cast<double>(other->held());
  }
  if (rate == 0) return false;
  // A stream that may be fast gets one chunk, and then as much as it has delivered,
  // until it is busy for long enough to show how fast it is.
  if (!own.is_limit()) return own.held() > own.delivered();
  return kMargin * static_cast<double>(own.held() + chunk) / own.rate() > before / rate;
}

}  // namespace bluecomm::stream
