// Splits a double into two parts whose products with such parts are exact.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/at_level.h"

namespace bluecomm {

inline constexpr std::uint64_t kLeadingBits = ~std::uint64_t{0} << 27;

// Returns a number with the leading 26 of the 53 bits of `value`. The difference
// between the two, the other 27 bits, is exact.
BLUECOMM_INLINE inline double leading_bits(double value) noexcept {
  return std::bit_cast<double>(std::bit_cast<std::uint64_t>(value) & kLeadingBits);
}

}  // namespace bluecomm
