// Conversion of single 16-bit floats to float32 and back, without F16C.
//
// The compiled functions have no branches, so the compiler vectorizes loops over them.
// They produce the same bits as F16C.
#pragma once

#include <bit>
#include <cstdint>

#include "kernels/at_level.h"

namespace bluecomm {

// float16: 1 sign, 5 exponent (bias 15), 10 mantissa bits.
BLUECOMM_INLINE inline float float16_to_float32(std::uint16_t half) noexcept {
  const std::uint32_t sign = static_cast<std::uint32_t>(half & 0x8000u) << 16;
  const std::uint32_t shifted = static_cast<std::uint32_t>(half & 0x7fffu) << 13;
  // The exponent field moves from bias 15 to bias 127; subnormals become normal.
  const float scaled = std::bit_cast<float>(shifted) * 0x1p112f;
  std::uint32_t bits = std::bit_cast<std::uint32_t>(scaled);
  const std::uint32_t infinity = 0x7c00u << 13;
  bits |= shifted >= infinity ? 0x7f800000u : 0u;
  bits |= shifted > infinity ? 0x00400000u : 0u;  // a NaN is made quiet
  return std::bit_cast<float>(bits | sign);
}

// Rounds to nearest, ties to even; overflows to infinity; keeps a NaN's upper payload.
BLUECOMM_INLINE inline std::uint16_t float32_to_float16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  const std::uint32_t normal =
      (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
  // The unit in the last place of 0.5 is the smallest float16, so this addition rounds.
  const std::uint32_t subnormal =
      std::bit_cast<std::uint32_t>(std::bit_cast<float>(magnitude) + 0.5f) -
      0x3f000000u;
  const std::uint32_t nan = 0x7e00u | ((magnitude >> 13) & 0x3ffu);
  std::uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
  result = magnitude >= 0x477ff000u ? 0x7c00u : result;
  result = magnitude > 0x7f800000u ? nan : result;
  return static_cast<std::uint16_t>(result | ((bits >> 16) & 0x8000u));
}

// bfloat16: the upper half of a float32.
BLUECOMM_INLINE inline float bfloat16_to_float32(std::uint16_t half) noexcept {
  return std::bit_cast<float>(static_cast<std::uint32_t>(half) << 16);
}

// Rounds to nearest, ties to even; every NaN becomes PyTorch's, 0x7fc0.
BLUECOMM_INLINE inline std::uint16_t float32_to_bfloat16(float value) noexcept {
  const std::uint32_t bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
  const bool is_nan = (bits & 0x7fffffffu) > 0x7f800000u;
  return static_cast<std::uint16_t>(is_nan ? 0x7fc0u : rounded);
}

}  // namespace bluecomm
