// The average of two terms in their own type.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>

#include "kernels/combine.h"
#include "kernels/lanes.h"

namespace bluecomm {

// dst[k] = (a[k] + b[k]) / 2, rounded once: half of a sum is exact unless it is
// subnormal, and then the sum itself is exact. Terms whose sum overflows are halved
// beforehand.
template <typename T>
void average_two(CpuLevel level, std::span<std::byte> dst,
                 std::span<const Term> terms) {
  const std::byte* const a = terms[0].data;
  const std::byte* const b = terms[1].data;
  std::byte* const out = dst.data();
  // AVX-512 would be no faster, because the loop is limited by its loads.
  for_lanes<PlainItem<T>>(std::min(level, CpuLevel::kAvx2), dst.size() / sizeof(T),
                          [=](auto lanes, std::size_t i) BLUECOMM_INLINE {
                            using Computed = typename decltype(lanes)::Computed;
                            constexpr T kHalf = 0.5;
                            Computed first;
                            Computed second;
                            lanes.load(first, a, i);
                            lanes.load(second, b, i);
                            Computed mean = kHalf * (first + second);
                            if (!lanes.are_finite(mean)) {
                              const Computed halves = kHalf * first + kHalf * second;
                              const Computed difference =
                                  mean - mean;  // 0, or NaN if it is not finite
                              mean = difference == difference ? mean : halves;
                            }
                            lanes.store(out, i, mean);
                          });
}

}  // namespace bluecomm
