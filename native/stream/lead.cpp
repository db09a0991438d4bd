#include "stream/lead.h"

#include <algorithm>

#include "stream/wire.h"

namespace bluecomm::stream {
namespace {

// A path on which packets wait for longer than this has a queue that matters.
constexpr std::chrono::microseconds kQueued{1000};

// The least limit per stream: two milliseconds of a network of 1 Gbit/s. Half of it
// does not keep such a network busy if the ends share cores with other processes, and
// twice as much lets the directions drift further apart.
constexpr std::size_t kLeastLead = 256 << 10;

}  // namespace

std::size_t lead_on(std::span<const PathState> streams) {
  std::chrono::microseconds waiting{0};
  std::size_t on_the_way = 0;
  for (const PathState& one : streams) {
    waiting = std::max(waiting, one.round_trip - one.shortest_round_trip);
    const auto round_trip_us =
        static_cast<std::uint64_t>(one.shortest_round_trip.count());
    on_the_way += one.bytes_per_second * round_trip_us / 1'000'000;
  }
  if (waiting < kQueued) return kAnyLead;
  // Whole chunks, so that the limit does not cut any.
  const std::size_t least = streams.size() * kLeastLead;
  return least + 2 * on_the_way / kSmallChunk * kSmallChunk;
}

}  // namespace bluecomm::stream
