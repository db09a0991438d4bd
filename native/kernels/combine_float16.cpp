#include "kernels/combine_float16.h"

#include <array>
#include <utility>

#include "kernels/at_level.h"
#include "kernels/half.h"
#include "kernels/unaligned.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bluecomm {

#if defined(__x86_64__)

namespace {

// Written with intrinsics because the compiler does not use F16C by itself. Eight lanes
// are as fast as memory. Multiplying by a weight of 1 changes no bit.
template <std::size_t kTerms>
BLUECOMM_TARGET_AVX2 void fold_f16c(std::byte* dst, const Term* terms,
                                    const Factors& factors, std::size_t count) {
  std::array<const std::byte*, kTerms> in;
  std::array<float, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = terms[t].data;
    weight[t] = static_cast<float>(factors.weight(terms[t]));
  }
  const TwoFloats last(factors.last);
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    __m256 sum{};
    for (std::size_t t = 0; t < kTerms; ++t) {
      const auto* halves = reinterpret_cast<const __m128i*>(in[t] + 2 * i);
      const __m256 value = _mm256_mul_ps(_mm256_set1_ps(weight[t]),
                                         _mm256_cvtph_ps(_mm_loadu_si128(halves)));
      sum = t == 0 ? value : _mm256_add_ps(sum, value);
    }
    sum = _mm256_add_ps(_mm256_mul_ps(_mm256_set1_ps(last.head), sum),
                        _mm256_mul_ps(_mm256_set1_ps(last.tail), sum));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i),
                     _mm256_cvtps_ph(sum, _MM_FROUND_TO_NEAREST_INT));
  }
  for (; i < count; ++i) {
    float sum =
        weight[0] * float16_to_float32(unaligned<std::uint16_t>(in[0])[i].value);
    for (std::size_t t = 1; t < kTerms; ++t) {
      sum += weight[t] * float16_to_float32(unaligned<std::uint16_t>(in[t])[i].value);
    }
    const float result = last.head * sum + last.tail * sum;
    unaligned<std::uint16_t>(dst)[i].value = float32_to_float16(result);
  }
}

}  // namespace

bool combine_float16(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  if (level == CpuLevel::kBaseline) return false;
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return false;
    fold_f16c<kIndex + 1>(dst.data(), terms.data(), factors, dst.size() / 2);
    return true;
  };
  return [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    return (try_size.template operator()<kIndex>() || ...);
  }(std::make_index_sequence<kFusedFloat16>());
}

#else

bool combine_float16(CpuLevel, std::span<std::byte>, std::span<const Term>,
                     const Factors&) noexcept {
  return false;
}

#endif

}  // namespace bluecomm
