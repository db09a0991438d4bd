#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>

#include "stream/options.h"

namespace bluecomm::stream {

// How fast a stream gets rid of what its socket holds: the bytes that the peer's kernel
// has acknowledged, over stretches of kSpan in which there was always something to
// send.
class Pace {
 public:
  static constexpr std::chrono::milliseconds kSpan{20};
  // A stream that was given nothing for so long may be another one by now.
  static constexpr std::chrono::milliseconds kForget{1000};

  // `sent`: bytes ever given to the socket; `held`: those of them that it still holds.
  void update(std::uint64_t sent, std::size_t held, Clock::time_point now);

  double rate() const { return rate_; }  // bytes per second; 0: not known
  std::size_t held() const { return held_; }

 private:
  double rate_ = 0;
  std::size_t held_ = 0;
  bool begun_ = false;
  Clock::time_point since_;
  Clock::time_point measured_at_;
  std::int64_t acknowledged_before_ = 0;
};

// Whether stream `index` should leave a chunk of `chunk` bytes to those that are at
// least twice as fast: before it could deliver the chunk, they would be through half of
// what they hold and of the `pending` bytes that no stream has taken. Otherwise a slow
// path would hold back the oldest message, and so all others in the end. Source: the
// rule "earliest completion first" of Lim et al., "ECF: An MPTCP Path Scheduler to
// Manage Heterogeneous Paths", CoNEXT 2017, for many streams.
bool leaves_chunk_to_others(std::span<const Pace* const> streams, std::size_t index,
                            std::size_t pending, std::size_t chunk);

}  // namespace bluecomm::stream
