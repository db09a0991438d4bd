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
#include <cstring>

#include "kernels/at_level.h"
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

// The lanes of a level. Where they are single items, the compiler vectorizes the loop.
template <typename Item, CpuLevel kLevel>
struct Lanes : Item {};

// Brings what will be loaded soon into the first-level cache. Loops that compute much
// per item would otherwise wait for the second level.
BLUECOMM_INLINE inline void prefetch(const std::byte* data) {
  constexpr std::size_t kAhead = 1024;
  __builtin_prefetch(data + kAhead);
}

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

// The common part of the lanes of float and double.
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
