#pragma once

#include <atomic>
#include <cstddef>

#include "stream/wire.h"

namespace bluecomm::stream {

// Limits on how the links of a process send chunks. Any thread may change them at any
// time: each link reads them at its next turn, and no receiver needs to know them.
struct SendingLimits {
  // The most streams of a link that carry chunks, at least 1. Others stay open.
  std::atomic<std::size_t> streams = kMaxStreams;
  // The size of chunks, a power of two from kAlignment to kSegment. 0: kSmallChunk with
  // several streams, kSegment with one.
  std::atomic<std::size_t> chunk = 0;
};

}  // namespace bluecomm::stream
