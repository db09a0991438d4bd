#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stream/options.h"

namespace bluecomm::stream {

// The round-trip time above which a stream counts as far. Most bytes held by a far
// stream are in transit, so its rate shows what it was given rather than what it could
// carry.
inline constexpr std::chrono::microseconds kNear{2000};

// The kernel's report about a stream's socket.
struct Backlog {
  std::uint64_t sent = 0;  // bytes written to the socket so far
  std::size_t held = 0;    // of these, not acknowledged by the peer's kernel
  std::size_t unsent = 0;  // of these, not sent to the network yet
  bool is_far = false;     // the round-trip time is above kNear
};

// Estimates how fast a stream delivers: the bytes that the peer's kernel acknowledges
// per second, over intervals of kSpan. If the stream was idle in an interval, or no
// byte waited to be sent at its end, the stream could have delivered more. Such an
// interval may raise the estimate, but does not show that the stream is slow.
class DeliveryRate {
 public:
  static constexpr std::chrono::milliseconds kSpan{20};
  // The rate of a stream that has shown nothing for this long counts as unknown.
  static constexpr std::chrono::milliseconds kForget{1000};

  void update(const Backlog& backlog, Clock::time_point now);

  double rate() const { return rate_; }  // bytes per second; 0 if unknown
  // Whether the stream is known not to deliver more.
  bool is_limit() const { return is_limit_; }
  std::size_t held() const { return held_; }
  // The bytes that were acknowledged since the rate was last a limit.
  std::uint64_t delivered() const { return acknowledged_ - unknown_from_; }
  bool is_far() const { return is_far_; }

 private:
  void measure(double rate, Clock::time_point now);

  double rate_ = 0;
  bool is_limit_ = false;
  std::size_t held_ = 0;
  bool is_far_ = false;
  bool begun_ = false;
  bool was_idle_ = false;  // in this interval
  Clock::time_point since_;
  Clock::time_point measured_at_;
  // Bytes acknowledged: so far, when the interval began, when the rate became unknown.
  std::uint64_t acknowledged_ = 0;
  std::uint64_t acknowledged_before_ = 0;
  std::uint64_t unknown_from_ = 0;
};

// Returns whether stream `index` should leave a chunk of `chunk` bytes to the streams
// that are at least twice as fast: before it could deliver the chunk, these could
// deliver half of what they hold and of the `pending` bytes that no stream has taken.
// Otherwise a slow path would delay the oldest message, and in the end all others. A
// far stream leaves nothing. Generalizes the rule "earliest completion first" of Lim et
// al., "ECF: An MPTCP Path Scheduler to Manage Heterogeneous Paths", CoNEXT 2017, to
// many streams.
bool leaves_chunk_to_others(std::span<const DeliveryRate* const> streams,
                            std::size_t index, std::size_t pending, std::size_t chunk);

}  // namespace bluecomm::stream
