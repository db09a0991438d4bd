#pragma once

#include <cstddef>

namespace bluecomm {

// Values that different processes write lie in different cache lines.
inline constexpr std::size_t kCacheLine = 64;

// Returns `nbytes`, rounded up to whole cache lines.
constexpr std::size_t whole_lines(std::size_t nbytes) {
  return (nbytes + kCacheLine - 1) / kCacheLine * kCacheLine;
}

}  // namespace bluecomm
