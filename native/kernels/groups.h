// The order in which the terms of a sum are read.
//
// A few terms are read side by side in one loop. More terms are added in groups, block
// by block: the sums of a block stay in the first-level cache, so that each term and
// the result cross the memory bus once. Grouping does not change the bits of the
// result.
#pragma once

#include <algorithm>
#include <cstddef>
#include <span>
#include <utility>

#include "kernels/combine.h"

namespace bluecomm {

inline constexpr std::size_t kFusedTerms = 8;  // read side by side, if there are few
inline constexpr std::size_t kGroupTerms = 4;  // the same, if there are many
inline constexpr std::size_t kSumBlock = 512;  // items

// Adds the last 1 to kMost terms.
template <std::size_t kMost, bool kBegins, typename AddGroup>
void add_last_group(std::span<const Term> terms, std::size_t offset, std::size_t count,
                    const AddGroup& add_group) {
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    add_group.template operator()<kIndex + 1, kBegins, true>(terms, offset, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kMost>());
}

// Calls add_group<kTerms, kBegins, kEnds>(terms, offset, items) until all terms of
// `count` items are added. A group begins the sums of a block of at most kSumBlock
// items or continues them, and keeps them or ends with the results. A group that does
// both may have any number of items.
template <typename AddGroup>
void add_in_groups(std::span<const Term> terms, std::size_t count,
                   const AddGroup& add_group) {
  if (terms.size() <= kFusedTerms) {
    return add_last_group<kFusedTerms, true>(terms, 0, count, add_group);
  }
  for (std::size_t offset = 0; offset < count; offset += kSumBlock) {
    const std::size_t length = std::min(kSumBlock, count - offset);
    add_group.template operator()<kGroupTerms, true, false>(terms, offset, length);
    std::span<const Term> rest = terms.subspan(kGroupTerms);
    for (; rest.size() > kGroupTerms; rest = rest.subspan(kGroupTerms)) {
      add_group.template operator()<kGroupTerms, false, false>(rest, offset, length);
    }
    add_last_group<kGroupTerms, false>(rest, offset, length, add_group);
  }
}

}  // namespace bluecomm
