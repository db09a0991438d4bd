// Loops over several items at a time, with intrinsics for what the compiler does not
// vectorize well by itself.
//
//   const auto step = [=](auto lanes, std::size_t i) BLUECOMM_INLINE {
//     typename decltype(lanes)::Computed items;
//     lanes.load(items, data, i);
//     lanes.store(out, i, 2.0 * items);
//   };
//   for_lanes<Float32Item>(level, count, step);
//
// Lanes read `kItems` items into one `Computed`, a vector of the type in which they are
// computed. Their functions take vectors by reference, because the calling convention
// for vectors depends on the instruction set of the caller.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "kernels/at_level.h"
#include "kernels/factors.h"
#include "kernels/half.h"
#include "kernels/unaligned.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bluecomm {

// One item of a floating type T, computed in T.
template <typename T>
struct PlainItem {
  using Computed = T;
  static constexpr std::size_t kItems = 1;
  static constexpr bool kOnlyLast = false;
  BLUECOMM_INLINE static void load(T& to, const std::byte* data, std::size_t i) {
    to = unaligned<T>(data)[i].value;
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i, const T& from) {
    unaligned<T>(data)[i].value = from;
  }
  // Returns whether all items are finite.
  BLUECOMM_INLINE static bool are_finite(const T& item) { return item - item == 0; }
};

// A float32 item, computed in float64.
struct Float32Item {
  using Wide = double;
  using Last = double;
  using Computed = double;
  static constexpr std::size_t kBytes = 4;
  static constexpr std::size_t kItems = 1;
  static constexpr bool kOnlyLast = false;
  BLUECOMM_INLINE static void load(double& to, const std::byte* data, std::size_t i) {
    to = static_cast<double>(unaligned<float>(data)[i].value);
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i,
                                    const double& from) {
    unaligned<float>(data)[i].value = static_cast<float>(from);
  }
};

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

// The lanes of a level. Where they are single items, the compiler vectorizes the loop.
template <typename Item, CpuLevel kLevel>
struct Lanes : Item {};

// Brings what will be loaded soon into the first-level cache. Loops that compute much
// per item would otherwise wait for the second level.
BLUECOMM_INLINE inline void prefetch(const std::byte* data) {
  constexpr std::size_t kAhead = 1024;
  __builtin_prefetch(data + kAhead);
}

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

// Conversions with a mask of all lanes, because g++ 12 warns of uninitialized variables
// in those without a mask. They are the same instructions.
template <>
struct Lanes<Float32Item, CpuLevel::kAvx512> {
  using Computed __attribute__((vector_size(64))) = double;
  static constexpr std::size_t kItems = 8;
  BLUECOMM_TARGET_AVX512 static inline void load(Computed& to, const std::byte* data,
                                                 std::size_t i) {
    const auto* const items = reinterpret_cast<const float*>(data) + i;
    prefetch(data + i * sizeof(float));
    to = _mm512_maskz_cvtps_pd(0xff, _mm256_loadu_ps(items));
  }
  BLUECOMM_TARGET_AVX512 static inline void store(std::byte* data, std::size_t i,
                                                  const Computed& from) {
    _mm256_storeu_ps(reinterpret_cast<float*>(data) + i,
                     _mm512_maskz_cvtpd_ps(0xff, from));
  }
};

template <>
struct Lanes<Float32Item, CpuLevel::kAvx2> {
  using Computed __attribute__((vector_size(32))) = double;
  static constexpr std::size_t kItems = 4;
  BLUECOMM_TARGET_AVX2 static inline void load(Computed& to, const std::byte* data,
                                               std::size_t i) {
    const auto* const items = reinterpret_cast<const float*>(data) + i;
    prefetch(data + i * sizeof(float));
    to = _mm256_cvtps_pd(_mm_loadu_ps(items));
  }
  BLUECOMM_TARGET_AVX2 static inline void store(std::byte* data, std::size_t i,
                                                const Computed& from) {
    _mm_storeu_ps(reinterpret_cast<float*>(data) + i, _mm256_cvtpd_ps(from));
  }
};

// What the lanes of float and double have in common.
template <typename T, std::size_t kBytes>
struct VectorLanes {
  using Computed __attribute__((vector_size(kBytes))) = T;
  static constexpr std::size_t kItems = kBytes / sizeof(T);
  BLUECOMM_INLINE static void load(Computed& to, const std::byte* data, std::size_t i) {
    prefetch(data + i * sizeof(T));
    std::memcpy(&to, data + i * sizeof(T), kBytes);
  }
  BLUECOMM_INLINE static void store(std::byte* data, std::size_t i,
                                    const Computed& from) {
    std::memcpy(data + i * sizeof(T), &from, kBytes);
  }
};

template <>
struct Lanes<PlainItem<float>, CpuLevel::kAvx2> : VectorLanes<float, 32> {
  BLUECOMM_TARGET_AVX2 static inline bool are_finite(const Computed& items) {
    const Computed zeros = items - items;
    return _mm256_movemask_ps(_mm256_cmp_ps(zeros, zeros, _CMP_UNORD_Q)) == 0;
  }
};

template <>
struct Lanes<PlainItem<double>, CpuLevel::kAvx2> : VectorLanes<double, 32> {
  BLUECOMM_TARGET_AVX2 static inline bool are_finite(const Computed& items) {
    const Computed zeros = items - items;
    return _mm256_movemask_pd(_mm256_cmp_pd(zeros, zeros, _CMP_UNORD_Q)) == 0;
  }
};

template <>
struct Lanes<PlainItem<float>, CpuLevel::kBaseline> : VectorLanes<float, 16> {
  BLUECOMM_INLINE static bool are_finite(const Computed& items) {
    const Computed zeros = items - items;
    return _mm_movemask_ps(_mm_cmpunord_ps(zeros, zeros)) == 0;
  }
};

template <>
struct Lanes<PlainItem<double>, CpuLevel::kBaseline> : VectorLanes<double, 16> {
  BLUECOMM_INLINE static bool are_finite(const Computed& items) {
    const Computed zeros = items - items;
    return _mm_movemask_pd(_mm_cmpunord_pd(zeros, zeros)) == 0;
  }
};

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

// Calls step(Item{}, i) for each item. The compiler vectorizes the loop, which makes it
// long, unless it only ever has the items that fill no vector.
template <typename Item, typename Step>
__attribute__((noinline)) void for_items(std::size_t begin, std::size_t end,
                                         const Step step) {
  if constexpr (Item::kOnlyLast) {
    for (std::size_t i = begin; i < end; ++i) {
      step(Item{}, i);
      asm volatile("" ::: "memory");
    }
    return;
  }
  BLUECOMM_INDEPENDENT
  for (std::size_t i = begin; i < end; ++i) step(Item{}, i);
}

// Calls step(lanes, i) for the first item of each group of `count` items. The last few
// items are groups of one.
template <typename Item, typename Step>
void for_lanes(CpuLevel level, std::size_t count, const Step step) {
  const auto run = [=](auto lanes) BLUECOMM_INLINE {
    for (std::size_t i = 0; i + lanes.kItems <= count; i += lanes.kItems) {
      step(lanes, i);
    }
    return count - count % lanes.kItems;
  };
  std::size_t done = 0;
#if defined(__x86_64__)
  if (level == CpuLevel::kAvx512) {
    done = run_avx512(
        [=]() BLUECOMM_INLINE { return run(Lanes<Item, CpuLevel::kAvx512>{}); });
  } else if (level == CpuLevel::kAvx2) {
    done =
        run_avx2([=]() BLUECOMM_INLINE { return run(Lanes<Item, CpuLevel::kAvx2>{}); });
  }
#endif
  using Baseline = Lanes<Item, CpuLevel::kBaseline>;
  if constexpr (Baseline::kItems > 1) {
    if (level == CpuLevel::kBaseline) done = run(Baseline{});
  }
  for_items<Item>(done, count, step);
}

}  // namespace bluecomm
