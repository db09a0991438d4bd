#include "stream/delivery_rate.h"

#include <algorithm>

namespace bluecomm::stream {
namespace {

constexpr double kMuchFaster = 2;
// A safety margin: rates are estimates, and a late chunk delays the next messages too.
constexpr double kMargin = 2;

}  // namespace

void DeliveryRate::update(const Backlog& backlog, Clock::time_point now) {
  held_ = backlog.held;
  is_far_ = backlog.is_far;
  // Negative if the kernel counts more bytes than were written.
  const auto acknowledged = static_cast<std::int64_t>(backlog.sent - backlog.held);
  if (begun_ && now - since_ < kSpan) return;
  if (begun_) {
    const auto count = std::max<std::int64_t>(acknowledged - acknowledged_before_, 0);
    const double rate = static_cast<double>(count) /
                        std::chrono::duration<double>(now - since_).count();
    // If no bytes had to wait for the network, the measured rate is only a lower bound.
    if (backlog.unsent > 0 || rate > rate_) {
      rate_ = rate_ == 0 ? rate : (rate_ + rate) / 2;
      measured_at_ = now;
    } else if (now - measured_at_ >= kForget) {
      rate_ = 0;
    }
  }
  begun_ = true;
  since_ = now;
  acknowledged_before_ = acknowledged;
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
  // A stream of unknown rate gets one chunk, which shows how fast it is.
  if (own.rate() == 0) return own.held() > 0;
  return kMargin * static_cast<double>(own.held() + chunk) / own.rate() > before / rate;
}

}  // namespace bluecomm::stream
