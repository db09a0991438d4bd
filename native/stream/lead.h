#pragma once

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <utility>

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
// chunks wait for all of them. `streams` are those that both ends use: if one end uses
// more, because each finds its own number, its lead would be the larger one, and only
// it would fill the queue.
std::size_t lead_on(std::span<const PathState> streams);

// Finds out how many streams the peer uses for its chunks.
class PeerStreams {
 public:
  // A chunk has arrived on a stream. The peer uses the first ones.
  void count(std::size_t stream, std::size_t nbytes) {
    most_ = std::max(most_, stream + 1);
    nbytes_ += nbytes;
    if (nbytes_ < kWindow) return;
    before_ = std::exchange(most_, 0);
    nbytes_ = 0;
  }

  // Returns the largest number that the peer may have used for its last chunks: without
  // a limit until enough of them have arrived.
  std::size_t number() const {
    return before_ == 0 ? kUnknown : std::max(before_, most_);
  }

 private:
  // Chunks of this many bytes use all streams.
  static constexpr std::size_t kWindow = 2 << 20;
  static constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

  std::size_t before_ = 0;  // in the last window
  std::size_t most_ = 0;    // in this window
  std::size_t nbytes_ = 0;
};

}  // namespace bluecomm::stream
