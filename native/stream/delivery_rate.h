#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stream/options.h"

namespace bluecomm::stream {

// Where a round trip takes longer, most of what a stream holds is on its way, and its
// rate tells what it was given rather than what it can take.
inline constexpr std::chrono::microseconds kNear{2000};

// What the kernel tells of a stream's socket.
struct Backlog {
  std::uint64_t sent = 0;  // bytes ever given to the socket
  std::size_t held = 0;    // those that the peer's kernel has not acknowledged
  std::size_t unsent = 0;  // those that have not left this machine
  bool is_far = false;     // a round trip takes longer than kNear
};

// How fast a stream gets rid of what its socket holds: the bytes that the peer's kernel
// has acknowledged, over stretches of kSpan. A rate falls only where bytes could not
// leave, since a stream that waits for acknowledgements of all it was given is not
// slow.
class DeliveryRate {
 public:
  static constexpr std::chrono::milliseconds kSpan{20};
  // A stream that was given nothing for so long may be another one by now.
  static constexpr std::chrono::milliseconds kForget{1000};

  void update(const Backlog& backlog, Clock::time_point now);

  double rate() const { return rate_; }  // bytes per second; 0: not known
  std::size_t held() const { return held_; }
  bool is_far() const { return is_far_; }

 private:
  double rate_ = 0;
  std::size_t held_ = 0;
  bool is_far_ = false;
  bool begun_ = false;
  Clock::time_point since_;
  Clock::time_point measured_at_;
  std::int64_t acknowledged_before_ = 0;
};

// Whether stream `index` should leave a chunk of `chunk` bytes to those that are at
// least twice as fast: before it could deliver the chunk, they would be through half of
// what they hold and of the `pending` bytes that no stream has taken. Otherwise a slow
// path would hold back the oldest message, and so all others in the end. A stream that
// is far leaves nothing. Source: the
// rule "earliest completion first" of Lim et al., "ECF: An MPTCP Path Scheduler to
// Manage Heterogeneous Paths", CoNEXT 2017, for many streams.
bool leaves_chunk_to_others(std::span<const DeliveryRate* const> streams,
                            std::size_t index, std::size_t pending, std::size_t chunk);

}  // namespace bluecomm::stream
