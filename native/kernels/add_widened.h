// Weighted sums in the next wider type, rounded once.
//
// A few terms are read side by side in one loop. More terms are added in groups, block
// by block: the sums of a block stay in the first-level cache, so that each term and
// the result cross the memory bus once. Grouping does not change the bits of the
// result.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstring>
#include <span>
#include <utility>

#include "kernels/combine.h"
#include "kernels/factors.h"
#include "kernels/lanes.h"

namespace bluecomm {

enum class LastFactor {
  kNone,      // the sum is the result
  kOnePart,   // the sum is multiplied once
  kTwoParts,  // the factor does not fit into the type of the sum
};

// How the terms of one sum are added.
template <bool kOwns, LastFactor kLast>
struct WidenedSum {
  static constexpr bool kOwnWeights = kOwns;  // otherwise only the sum is multiplied
  static constexpr LastFactor kLastFactor = kLast;
};

// Adds `count` items of kTerms terms: begins the sums or continues those in `sums`, and
// stores them there or writes the results to `dst`.
template <typename Item, typename Sum, std::size_t kTerms, bool kBegins, bool kEnds>
void add_group(CpuLevel level, std::byte* dst, typename Item::Wide* sums,
               const Term* terms, const Factors& factors,
               const typename Item::Last& last, std::size_t offset, std::size_t count) {
  using Wide = typename Item::Wide;
  std::array<const std::byte*, kTerms> in;
  std::array<Wide, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = terms[t].data + offset * Item::kBytes;
    weight[t] = static_cast<Wide>(factors.weight(terms[t]));
  }
  std::byte* const out = dst + offset * Item::kBytes;
  for_lanes<Item>(level, count, [=](auto lanes, std::size_t i) BLUECOMM_INLINE {
    using Computed = typename decltype(lanes)::Computed;
    Computed sum;
    if constexpr (!kBegins) std::memcpy(&sum, sums + i, sizeof sum);
    for (std::size_t t = 0; t < kTerms; ++t) {
      Computed item;
      lanes.load(item, in[t], i);
      if constexpr (Sum::kOwnWeights) item = weight[t] * item;
      sum = kBegins && t == 0 ? item : sum + item;
    }
    if constexpr (!kEnds) {
      std::memcpy(sums + i, &sum, sizeof sum);
      return;
    }
    if constexpr (Sum::kLastFactor == LastFactor::kOnePart) sum = last * sum;
    if constexpr (Sum::kLastFactor == LastFactor::kTwoParts) {
      sum = last.head * sum + last.tail * sum;
    }
    lanes.store(out, i, sum);
  });
}

inline constexpr std::size_t kFusedTerms = 8;  // read side by side, if there are few
inline constexpr std::size_t kGroupTerms = 4;  // the same, if there are many
inline constexpr std::size_t kSumBlock = 512;  // items

// Adds the last 1 to kMost terms.
template <typename Item, typename Sum, std::size_t kMost, bool kBegins>
void add_last(CpuLevel level, std::byte* dst, typename Item::Wide* sums,
              std::span<const Term> terms, const Factors& factors,
              const typename Item::Last& last, std::size_t offset, std::size_t count) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group<Item, Sum, kIndex + 1, kBegins, true>(level, dst, sums, terms.data(),
                                                    factors, last, offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kMost>());
}

// Adds any number of terms as `Sum` says.
template <typename Item, typename Sum>
void add_terms(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
               const Factors& factors, const typename Item::Last& last) {
  const std::size_t count = dst.size() / Item::kBytes;
  if (terms.size() <= kFusedTerms) {
    return add_last<Item, Sum, kFusedTerms, true>(level, dst.data(), nullptr, terms,
                                                  factors, last, 0, count);
  }
  std::array<typename Item::Wide, kSumBlock> block;
  auto* const sums = block.data();
  for (std::size_t offset = 0; offset < count; offset += kSumBlock) {
    const std::size_t length = std::min(kSumBlock, count - offset);
    add_group<Item, Sum, kGroupTerms, true, false>(level, nullptr, sums, terms.data(),
                                                   factors, last, offset, length);
    std::span<const Term> rest = terms.subspan(kGroupTerms);
    for (; rest.size() > kGroupTerms; rest = rest.subspan(kGroupTerms)) {
      add_group<Item, Sum, kGroupTerms, false, false>(level, nullptr, sums, rest.data(),
                                                      factors, last, offset, length);
    }
    add_last<Item, Sum, kGroupTerms, false>(level, dst.data(), sums, rest, factors,
                                            last, offset, length);
  }
}

}  // namespace bluecomm
