// Lanes of float16 and bfloat16, which are computed in float32.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/factors.h"
#include "kernels/half.h"
#include "kernels/lanes.h"

namespace bluecomm {

// A float16 item, computed in float32.
struct Float16Item {
  using Wide = float;
  using Last = TwoFloats;
  using Computed = float;
  static constexpr std::size_t kBytes = 2;
  static constexpr std::size_t kItems = 1;
  static constexpr bool kOnlyLast = true;
  BLUECOMM_INLINE static void load(float& to, const std::byte* data, std::size_t i) {
    to = float16_to_float32(unaligned<std::uint16_t>(data)[i].value);
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i, const float& from) {
    unaligned<std::uint16_t>(data)[i].value = float32_to_float16(from);
  }
};

// A bfloat16 item, computed in float32.
struct Bfloat16Item {
  using Wide = float;
  using Last = TwoFloats;
  using Computed = float;
  static constexpr std::size_t kBytes = 2;
  static constexpr std::size_t kItems = 1;
  static constexpr bool kOnlyLast = true;
  BLUECOMM_INLINE static void load(float& to, const std::byte* data, std::size_t i) {
    to = bfloat16_to_float32(unaligned<std::uint16_t>(data)[i].value);
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i, const float& from) {
    unaligned<std::uint16_t>(data)[i].value = float32_to_bfloat16(from);
  }
};

// Pairs of bfloat16 items: each is half of a 32-bit number, so that one instruction
// widens it.
template <std::size_t kVector>
struct Bfloat16Lanes {
  using Bits __attribute__((vector_size(kVector))) = std::uint32_t;
  using Floats __attribute__((vector_size(kVector))) = float;

  struct Computed {
    Floats low;
    Floats high;

    BLUECOMM_INLINE friend Computed operator*(float factor, const Computed& items) {
      return {factor * items.low, factor * items.high};
    }
    BLUECOMM_INLINE friend Computed operator+(const Computed& a, const Computed& b) {
      return {a.low + b.low, a.high + b.high};
    }
  };

  static constexpr std::size_t kItems = kVector / 2;

  BLUECOMM_INLINE static void load(Computed& to, const std::byte* data, std::size_t i) {
    prefetch(data + 2 * i);
    Bits pairs;
    std::memcpy(&pairs, data + 2 * i, kVector);
    to.low = reinterpret_cast<Floats>(pairs << 16);
    to.high = reinterpret_cast<Floats>(pairs & 0xffff0000u);
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i,
                                    const Computed& from) {
    Bits low;
    Bits high;
    round(low, from.low);
    round(high, from.high);
    const Bits pairs = (low >> 16) | (high & 0xffff0000u);
    std::memcpy(data + 2 * i, &pairs, kVector);
  }

 private:
  // Rounds to the upper half of each number, as float32_to_bfloat16() does.
  BLUECOMM_INLINE static void round(Bits& to, const Floats& from) {
    const Bits bits = reinterpret_cast<Bits>(from);
    const Bits rounded = bits + 0x7fffu + ((bits >> 16) & 1u);
    to = from == from ? rounded : Bits{} + 0x7fc00000u;
  }
};

template <CpuLevel kLevel>
struct Lanes<Bfloat16Item, kLevel> : Bfloat16Lanes<16> {};
template <>
struct Lanes<Bfloat16Item, CpuLevel::kAvx2> : Bfloat16Lanes<32> {};
template <>
struct Lanes<Bfloat16Item, CpuLevel::kAvx512> : Bfloat16Lanes<64> {};

#if defined(__x86_64__)

template <>
struct Lanes<Float16Item, CpuLevel::kAvx512> {
  using Computed __attribute__((vector_size(64))) = float;
  static constexpr std::size_t kItems = 16;
  BLUECOMM_TARGET_AVX512 static inline void load(Computed& to, const std::byte* data,
                                                 std::size_t i) {
    const auto* const items = reinterpret_cast<const __m256i*>(data + 2 * i);
    prefetch(data + 2 * i);
    to = _mm512_maskz_cvtph_ps(0xffff, _mm256_loadu_si256(items));
  }
  BLUECOMM_TARGET_AVX512 static inline void store(std::byte* data, std::size_t i,
                                                  const Computed& from) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(data + 2 * i),
                        _mm512_maskz_cvtps_ph(0xffff, from, _MM_FROUND_TO_NEAREST_INT));
  }
};

template <>
struct Lanes<Float16Item, CpuLevel::kAvx2> {
  using Computed __attribute__((vector_size(32))) = float;
  static constexpr std::size_t kItems = 8;
  BLUECOMM_TARGET_AVX2 static inline void load(Computed& to, const std::byte* data,
                                               std::size_t i) {
    const auto* const items = reinterpret_cast<const __m128i*>(data + 2 * i);
    prefetch(data + 2 * i);
    to = _mm256_cvtph_ps(_mm_loadu_si128(items));
  }
  BLUECOMM_TARGET_AVX2 static inline void store(std::byte* data, std::size_t i,
                                                const Computed& from) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(data + 2 * i),
                     _mm256_cvtps_ph(from, _MM_FROUND_TO_NEAREST_INT));
  }
};

#endif

}  // namespace bluecomm
