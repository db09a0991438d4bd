// Weighted sums in the next wider type, rounded once.
#pragma once

#include <array>
#include <cstddef>
#include <cstring>
#include <span>

#include "kernels/combine.h"
#include "kernels/factors.h"
#include "kernels/groups.h"
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

// Adds any number of terms as `Sum` says.
template <typename Item, typename Sum>
void add_terms(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
               const Factors& factors, const typename Item::Last& last) {
  std::array<typename Item::Wide, kSumBlock> block;
  auto* const sums = block.data();
  const auto add = [&]<std::size_t kTerms, bool kBegins, bool kEnds>(
                       std::span<const Term> group, std::size_t offset,
                       std::size_t count) {
    add_group<Item, Sum, kTerms, kBegins, kEnds>(level, dst.data(), sums, group.data(),
                                                 factors, last, offset, count);
  };
  add_in_groups(terms, dst.size() / Item::kBytes, add);
}

}  // namespace bluecomm
