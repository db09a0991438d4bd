#include "kernels/combine_float32.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "kernels/average_two.h"
#include "kernels/lanes.h"

namespace bluecomm {
namespace {

constexpr std::size_t kFused = 8;  // terms that are read side by side, if there are few
constexpr std::size_t kGroup = 4;  // the same, if there are many
constexpr std::size_t kBlock = 512;  // items

using WideBlock = std::array<double, kBlock>;

enum class WeightUse {
  kEqual,      // terms are added, then the sum is multiplied by their weight
  kOwn,        // terms are multiplied by weights of their own
  kOwnScaled,  // and their sum by another factor
};

// Adds `count` items of kTerms terms: begins the sums or continues those in `sums`, and
// stores them there or writes the results to `dst`. Sums of float32 do not overflow in
// float64.
template <WeightUse kWeights, std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, double* sums, const Term* terms,
               const Factors& factors, std::size_t offset, std::size_t count) {
  std::array<const std::byte*, kTerms> in;
  std::array<double, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = terms[t].data + offset * sizeof(float);
    weight[t] = factors.weight(terms[t]);
  }
  const double last = factors.last.value * factors.share.value_or(1.0);
  std::byte* const out = dst + offset * sizeof(float);
  for_lanes<Float32Item>(level, count, [=](auto lanes, std::size_t i) BLUECOMM_INLINE {
    typename decltype(lanes)::Computed sum;
    if constexpr (!kBegins) std::memcpy(&sum, sums + i, sizeof sum);
    for (std::size_t t = 0; t < kTerms; ++t) {
      typename decltype(lanes)::Computed item;
      lanes.load(item, in[t], i);
      if constexpr (kWeights != WeightUse::kEqual) item = weight[t] * item;
      sum = kBegins && t == 0 ? item : sum + item;
    }
    if constexpr (!kEnds) {
      std::memcpy(sums + i, &sum, sizeof sum);
    } else {
      if constexpr (kWeights != WeightUse::kOwn) sum = last * sum;
      lanes.store(out, i, sum);
    }
  });
}

// Adds the last 1 to kMost terms.
template <WeightUse kWeights, std::size_t kMost, bool kBegins>
void add_last(CpuLevel level, std::byte* dst, double* sums, std::span<const Term> terms,
              const Factors& factors, std::size_t offset, std::size_t count) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group<kWeights, kIndex + 1, kBegins, true>(level, dst, sums, terms.data(),
                                                   factors, offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kMost>());
}

template <WeightUse kWeights>
void add_all(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
             const Factors& factors) {
  const std::size_t count = dst.size() / sizeof(float);
  if (terms.size() <= kFused) {
    return add_last<kWeights, kFused, true>(level, dst.data(), nullptr, terms, factors,
                                            0, count);
  }
  WideBlock block;
  double* const sums = block.data();
  for (std::size_t offset = 0; offset < count; offset += kBlock) {
    const std::size_t length = std::min(kBlock, count - offset);
    add_group<kWeights, kGroup, true, false>(level, nullptr, sums, terms.data(),
                                             factors, offset, length);
    std::span<const Term> rest = terms.subspan(kGroup);
    for (; rest.size() > kGroup; rest = rest.subspan(kGroup)) {
      add_group<kWeights, kGroup, false, false>(level, nullptr, sums, rest.data(),
                                                factors, offset, length);
    }
    add_last<kWeights, kGroup, false>(level, dst.data(), sums, rest, factors, offset,
                                      length);
  }
}

}  // namespace

void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  if (!factors.share) {
    return factors.last.value == 1.0
               ? add_all<WeightUse::kOwn>(level, dst, terms, factors)
               : add_all<WeightUse::kOwnScaled>(level, dst, terms, factors);
  }
  if (terms.size() == 2 && factors.last.value * *factors.share == 0.5) {
    return average_two<float>(level, dst, terms);
  }
  add_all<WeightUse::kEqual>(level, dst, terms, factors);
}

}  // namespace bluecomm
