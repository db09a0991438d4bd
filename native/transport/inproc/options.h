#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>

namespace bluecomm {

struct InprocOptions {
  // Payloads up to this size travel with their header.
  std::size_t eager_bytes = 4096;
  // At most this many bytes of a message become readable at a time, unless the receiver
  // supplied its own memory. A multiple of kChunkAlignment.
  std::size_t chunk_bytes = 256 << 10;
  // Each message is held back for a random time up to this limit. The messages of one
  // channel keep their order; messages of different channels do not.
  std::chrono::microseconds max_delay{0};
  std::uint64_t seed = 1;  // of the random delays
  // Receivers may write to the sender's memory: see Channel::shares_memory().
  bool shares_memory = false;
  // See Channel::lead().
  std::size_t lead = std::numeric_limits<std::size_t>::max();
};

}  // namespace bluecomm
