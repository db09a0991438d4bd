#pragma once

#include <cstddef>
#include <span>

namespace bluecomm {

// Copies what is far larger than the caches past them: dst is not read first, and what
// lies in the caches stays there. The two do not overlap. What was written is seen by
// other processors before anything that is written after it.
void stream_copy(std::span<std::byte> dst, std::span<const std::byte> src) noexcept;

}  // namespace bluecomm
