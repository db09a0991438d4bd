#pragma once

#include <cstddef>
#include <span>

namespace bluecomm {

// Copies `src` to `dst` past the caches, for data far larger than the caches: `dst` is
// not read first, and the contents of the caches stay. The two must not overlap. Other
// processors see the copy before anything that is written after the call.
void stream_copy(std::span<std::byte> dst, std::span<const std::byte> src) noexcept;

}  // namespace bluecomm
