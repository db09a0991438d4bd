#include "kernels/combine_float32.h"

#include <algorithm>
#include <array>
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
// stores them there or writes the results to `dst`.
template <std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, double* sums, const Term* terms,
               const Factors& factors, std::size_t offset, std::size_t count) {
  std::array<const Unaligned<float>*, kTerms> in;
  std::array<double, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = unaligned<float>(terms[t].data) + offset;
    weight[t] = factors.weight(terms[t]);
  }
  const double last = factors.last.value;
  Unaligned<float>* const out = unaligned<float>(dst) + offset;
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      double sum = weight[0] * static_cast<double>(in[0][i].value);
      if constexpr (!kBegins) sum = sums[i] + sum;
      for (std::size_t t = 1; t < kTerms; ++t) {
        sum = sum + weight[t] * static_cast<double>(in[t][i].value);
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
template <std::size_t kMost, bool kBegins>
void add_last(CpuLevel level, std::byte* dst, double* sums, std::span<const Term> terms,
              const Factors& factors, std::size_t offset, std::size_t count) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group<kIndex + 1, kBegins, true>(level, dst, sums, terms.data(), factors,
                                         offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kMost>());
}

}  // namespace

void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  const std::size_t count = dst.size() / sizeof(float);
  if (terms.size() <= kFused) {
    return add_last<kFused, true>(level, dst.data(), nullptr, terms, factors, 0, count);
  }
  WideBlock block;
  double* const sums = block.data();
  for (std::size_t offset = 0; offset < count; offset += kBlock) {
    const std::size_t length = std::min(kBlock, count - offset);
    add_group<kGroup, true, false>(level, nullptr, sums, terms.data(), factors, offset,
                                   length);
    std::span<const Term> rest = terms.subspan(kGroup);
    for (; rest.size() > kGroup; rest = rest.subspan(kGroup)) {
      add_group<kGroup, false, false>(level, nullptr, sums, rest.data(), factors,
                                      offset, length);
    }
    add_last<kGroup, false>(level, dst.data(), sums, rest, factors, offset, length);
  }
}

}  // namespace bluecomm
