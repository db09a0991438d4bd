#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

namespace bluecomm::stream {

inline constexpr std::size_t kAnyLead = std::numeric_limits<std::size_t>::max();

// The kernel's measurements of the path of one stream; all 0 if there are none.
struct PathState {
  std::chrono::microseconds round_trip{0};
  std::chrono::microseconds shortest_round_trip{0};
  std::uint64_t bytes_per_second = 0;  // that the peer's kernel has acknowledged lately
};

// Returns how many bytes this end should send ahead of those that it receives, if both
// ends exchange data over these streams. It is kAnyLead while packets do not wait in
// queues.
//
// Acknowledgements wait in the same queue as data. An end that has filled the queue
// thereby slows down the other end, whose window is full until the acknowledgements
// arrive, and an exchange takes as long as its slower direction. The limit keeps the
// two directions in step, and still allows for what a path with a long round trip
// holds. Each stream adds to it: a link uses several paths at the same time only if
// chunks wait for all of them.
std::size_t lead_on(std::span<const PathState> streams);

}  // namespace bluecomm::stream
