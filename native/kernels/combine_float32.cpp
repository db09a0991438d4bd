#include "kernels/combine_float32.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <utility>

#include "kernels/at_level.h"
#include "kernels/unaligned.h"

namespace bluecomm {
namespace {

constexpr std::size_t kFused = 8;  // terms that are read side by side, if there are few
constexpr std::size_t kGroup = 4;  // the same, if there are many
constexpr std::size_t kBlock = 512;  // items

using WideBlock = std::array<double, kBlock>;

// Adds `count` items of kTerms terms: begins the sums or continues those in `sums`, and
// stores them there or writes the results to `dst`. If all terms have the same weight,
// it multiplies only the sum, because sums of float32 do not overflow in float64.
template <bool kOwnWeights, std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, double* sums, const Term* terms,
               const Factors& factors, std::size_t offset, std::size_t count) {
  std::array<const Unaligned<float>*, kTerms> in;
  std::array<double, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = unaligned<float>(terms[t].data) + offset;
    weight[t] = factors.weight(terms[t]);
  }
  const double last = factors.last.value * factors.share.value_or(1.0);
  Unaligned<float>* const out = unaligned<float>(dst) + offset;
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      double sum = kBegins ? 0.0 : sums[i];
      for (std::size_t t = 0; t < kTerms; ++t) {
        double item = static_cast<double>(in[t][i].value);
        if constexpr (kOwnWeights) item = weight[t] * item;
        sum = kBegins && t == 0 ? item : sum + item;
      }
      if constexpr (kEnds) {
        out[i].value = static_cast<float>(last * sum);
      } else {
        sums[i] = sum;
      }
    }
  });
}

// Adds the last 1 to kMost terms.
template <bool kOwnWeights, std::size_t kMost, bool kBegins>
void add_last(CpuLevel level, std::byte* dst, double* sums, std::span<const Term> terms,
              const Factors& factors, std::size_t offset, std::size_t count) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group<kOwnWeights, kIndex + 1, kBegins, true>(level, dst, sums, terms.data(),
                                                      factors, offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kMost>());
}

template <bool kOwnWeights>
void add_all(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
             const Factors& factors) {
  const std::size_t count = dst.size() / sizeof(float);
  if (terms.size() <= kFused) {
    return add_last<kOwnWeights, kFused, true>(level, dst.data(), nullptr, terms,
                                               factors, 0, count);
  }
  WideBlock block;
  double* const sums = block.data();
  for (std::size_t offset = 0; offset < count; offset += kBlock) {
    const std::size_t length = std::min(kBlock, count - offset);
    add_group<kOwnWeights, kGroup, true, false>(level, nullptr, sums, terms.data(),
                                                factors, offset, length);
    std::span<const Term> rest = terms.subspan(kGroup);
    for (; rest.size() > kGroup; rest = rest.subspan(kGroup)) {
      add_group<kOwnWeights, kGroup, false, false>(level, nullptr, sums, rest.data(),
                                                   factors, offset, length);
    }
    add_last<kOwnWeights, kGroup, false>(level, dst.data(), sums, rest, factors, offset,
                                         length);
  }
}

// Averages two terms in float32, which rounds once: half of a sum is exact unless it is
// subnormal, and then the sum itself is exact. Terms whose sum overflows are halved
// beforehand.
void average_two(CpuLevel level, std::span<std::byte> dst,
                 std::span<const Term> terms) {
  const Unaligned<float>* const a = unaligned<float>(terms[0].data);
  const Unaligned<float>* const b = unaligned<float>(terms[1].data);
  Unaligned<float>* const out = unaligned<float>(dst.data());
  const std::size_t count = dst.size() / sizeof(float);
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      const float sum = a[i].value + b[i].value;
      const float halves = 0.5f * a[i].value + 0.5f * b[i].value;
      const bool is_finite = std::abs(sum) <= std::numeric_limits<float>::max();
      out[i].value = is_finite ? 0.5f * sum : halves;
    }
  });
}

}  // namespace

void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  if (!factors.share) return add_all<true>(level, dst, terms, factors);
  if (terms.size() == 2 && factors.last.value * *factors.share == 0.5) {
    return average_two(level, dst, terms);
  }
  add_all<false>(level, dst, terms, factors);
}

}  // namespace bluecomm
