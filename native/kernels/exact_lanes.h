// Lanes of float64 whose operations also give their rounding errors.
//
// Each error is the rounded result minus the exact one, so that it is subtracted from a
// sum at the end: adding an error of 0 would change the sign of a zero. All levels give
// the same bits.
#pragma once

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "kernels/lanes.h"
#include "kernels/leading.h"

namespace bluecomm {

// Adds by Knuth's two-sum. `Real` is double or a vector of doubles.
template <typename Real>
BLUECOMM_INLINE inline void two_sum(Real& sum, Real& error, const Real& a,
                                    const Real& b) {
  sum = a + b;
  const Real of_b = sum - a;
  error = ((sum - of_b) - a) + (of_b - b);
}

// Returns `value` rounded to 26 bits. The difference between the two has 26 bits as
// well.
template <typename Real, typename Bits>
BLUECOMM_INLINE inline void round_to_leading_bits(Real& to, const Real& value) {
  constexpr std::uint64_t kHalf = std::uint64_t{1} << 26;
  to = std::bit_cast<Real>((std::bit_cast<Bits>(value) + kHalf) & kLeadingBits);
}

// The error of product = a * b by Dekker's product, which is exact unless a number is
// very large or a part very small.
template <typename Real, typename Bits>
BLUECOMM_INLINE inline void dekker_error(Real& error, const Real& product,
                                         const Real& a, const Real& b) {
  Real a_head;
  Real b_head;
  round_to_leading_bits<Real, Bits>(a_head, a);
  round_to_leading_bits<Real, Bits>(b_head, b);
  const Real a_tail = a - a_head;
  const Real b_tail = b - b_head;
  error = (((product - a_head * b_head) - a_head * b_tail) - a_tail * b_head) -
          a_tail * b_tail;
}

// Whether dekker_error() is exact for products that are ordinary.
BLUECOMM_INLINE inline bool suits_dekker(double a) {
  return std::abs(a) >= 0x1p-400 && std::abs(a) <= 0x1p400;
}

struct Float64Item : PlainItem<double> {
  static constexpr bool kOnlyLast = true;

  // Returns whether the square of the item is neither too large nor too small for
  // float64, so that no error of the item is too small.
  BLUECOMM_INLINE static bool are_ordinary(double item) {
    return std::isnormal(item * item);
  }
  BLUECOMM_INLINE static void add(double& sum, double& error, double a, double b) {
    two_sum(sum, error, a, b);
  }
  BLUECOMM_INLINE static void multiply(double& product, double& error, double a,
                                       double b) {
    product = a * b;
#if defined(__FP_FAST_FMA)
    error = std::fma(-a, b, product);
#else
    if (are_ordinary(product) && suits_dekker(a)) {
      dekker_error<double, std::uint64_t>(error, product, a, b);
    } else if (b == 0.0 && std::isfinite(a)) {
      error = 0.0;
    } else {
      error = std::fma(-a, b, product);  // slow on CPUs without the instruction
    }
#endif
  }
};

#if defined(__x86_64__)

template <>
struct Lanes<Float64Item, CpuLevel::kBaseline> : VectorLanes<double, 16> {
  using Bits __attribute__((vector_size(16))) = std::uint64_t;

  BLUECOMM_INLINE static bool are_ordinary(const Computed& items) {
    const __m128d square = items * items;
    const __m128d least = _mm_set1_pd(std::numeric_limits<double>::min());
    const __m128d most = _mm_set1_pd(std::numeric_limits<double>::max());
    return _mm_movemask_pd(_mm_and_pd(_mm_cmpge_pd(square, least),
                                      _mm_cmple_pd(square, most))) == 0x3;
  }
  BLUECOMM_INLINE static void add(Computed& sum, Computed& error, const Computed& a,
                                  const Computed& b) {
    two_sum(sum, error, a, b);
  }
  BLUECOMM_INLINE static void multiply(Computed& product, Computed& error, double a,
                                       const Computed& b) {
    product = a * b;
    if (are_ordinary(product) && suits_dekker(a)) {
      const Computed factor = {a, a};
      return dekker_error<Computed, Bits>(error, product, factor, b);
    }
    for (std::size_t k = 0; k < kItems; ++k) {
      double of_item = 0.0;
      double error_of_item = 0.0;
      Float64Item::multiply(of_item, error_of_item, a, b[k]);
      error[k] = error_of_item;
    }
  }
};

template <>
struct Lanes<Float64Item, CpuLevel::kAvx2> : Lanes<PlainItem<double>, CpuLevel::kAvx2> {
  BLUECOMM_TARGET_AVX2 static inline bool are_ordinary(const Computed& items) {
    const __m256d square = items * items;
    const __m256d least = _mm256_set1_pd(std::numeric_limits<double>::min());
    const __m256d most = _mm256_set1_pd(std::numeric_limits<double>::max());
    return _mm256_movemask_pd(_mm256_and_pd(_mm256_cmp_pd(square, least, _CMP_GE_OQ),
                                            _mm256_cmp_pd(square, most, _CMP_LE_OQ))) ==
           0xf;
  }
  BLUECOMM_INLINE static void add(Computed& sum, Computed& error, const Computed& a,
                                  const Computed& b) {
    two_sum(sum, error, a, b);
  }
  BLUECOMM_TARGET_AVX2 static inline void multiply(Computed& product, Computed& error,
                                                   double a, const Computed& b) {
    product = a * b;
    error = _mm256_fnmadd_pd(_mm256_set1_pd(a), b, product);
  }
};

template <>
struct Lanes<Float64Item, CpuLevel::kAvx512> : VectorLanes<double, 64> {
  BLUECOMM_TARGET_AVX512 static inline bool are_ordinary(const Computed& items) {
    constexpr int kNotNormal = 0xbf;  // zeros, infinities, subnormal numbers and NaNs
    return _mm512_fpclass_pd_mask(items * items, kNotNormal) == 0;
  }
  // Takes one operation less than two_sum(), for the same bits: the error of adding a
  // smaller number to a larger one is simpler.
  BLUECOMM_TARGET_AVX512 static inline void add(Computed& sum, Computed& error,
                                                const Computed& a, const Computed& b) {
    constexpr int kSmaller = 0x2 | 0x4;  // of absolute values, with its own sign
    constexpr int kLarger = 0x3 | 0x4;
    const Computed large = _mm512_maskz_range_pd(0xff, a, b, kLarger);
    const Computed small = _mm512_maskz_range_pd(0xff, a, b, kSmaller);
    sum = a + b;
    error = (sum - large) - small;
  }
  BLUECOMM_TARGET_AVX512 static inline void multiply(Computed& product, Computed& error,
                                                     double a, const Computed& b) {
    product = a * b;
    error = _mm512_fnmadd_pd(_mm512_set1_pd(a), b, product);
  }
};

#endif

}  // namespace bluecomm
