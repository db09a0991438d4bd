// The loops behind combine.h: a left fold over terms, for any format and operation.
//
// A few terms are read side by side in one loop. More terms are folded block by block:
// a block of partial results stays in the first-level cache while the next group of
// terms is folded in, so that each term and the result cross the memory bus once.
// Partial results have the type of the computation, so grouping and blocking do not
// change the bits of the result.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <span>
#include <type_traits>
#include <utility>

#include "kernels/at_level.h"
#include "kernels/combine.h"
#include "kernels/convert.h"
#include "kernels/factors.h"
#include "kernels/unaligned.h"

namespace bluecomm {

// A format defines how an item is stored and in which type it is computed. In formats
// that round a float32 value again, the last factor has two parts.
template <typename T>
struct Plain {
  using Item = T;
  using Value = T;
  static constexpr bool kHasTwoParts = false;
};

// Half types, only for fold_many(), which widens whole blocks at once.
struct Bfloat16 {
  using Item = std::uint16_t;
  using Value = float;
  static constexpr DType kDType = DType::kBfloat16;
};

struct Float16 {
  using Item = std::uint16_t;
  using Value = float;
  static constexpr DType kDType = DType::kFloat16;
};

struct Add {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

// Folds exactly kTerms terms of `count` items. Integers ignore all factors. For
// floating types, a factor of 1 changes no bit and costs no time, because the loads
// limit the loop.
template <typename Format, typename Op, std::size_t kTerms>
void fold_loop(CpuLevel level, std::byte* dst, const Term* terms, const TwoPart& last,
               std::size_t count) {
  using Item = typename Format::Item;
  using Value = typename Format::Value;
  constexpr bool kScaled = std::is_floating_point_v<Value>;
  std::array<const Unaligned<Item>*, kTerms> in;
  std::array<Value, kTerms> weight;
  for (std::size_t t = 0; t < kTerms; ++t) {
    in[t] = unaligned<Item>(terms[t].data);
    weight[t] = static_cast<Value>(terms[t].weight);
  }
  const Value factor = static_cast<Value>(last.value);
  const TwoFloats factors(last);
  Unaligned<Item>* const out = unaligned<Item>(dst);
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      Value result = in[0][i].value;
      if constexpr (kScaled) result = weight[0] * result;
      for (std::size_t t = 1; t < kTerms; ++t) {
        Value value = in[t][i].value;
        if constexpr (kScaled) value = weight[t] * value;
        result = Op::apply(result, value);
      }
      if constexpr (Format::kHasTwoParts) {
        result = factors.head * result + factors.tail * result;
      } else if constexpr (kScaled) {
        result = factor * result;
      }
      out[i].value = result;
    }
  });
}

// Folds 1 to kFused terms.
template <typename Format, typename Op, std::size_t kFused>
void fold_few(CpuLevel level, std::byte* dst, std::span<const Term> terms,
              const TwoPart& last, std::size_t count) {
  // Runs the loop that is made for kIndex + 1 terms, if there are as many.
  const auto try_size = [&]<std::size_t kIndex>() {
    if (terms.size() != kIndex + 1) return;
    fold_loop<Format, Op, kIndex + 1>(level, dst, terms.data(), last, count);
  };
  [&]<std::size_t... kIndex>(std::index_sequence<kIndex...>) {
    (try_size.template operator()<kIndex>(), ...);
  }(std::make_index_sequence<kFused>());
}

inline constexpr std::size_t kFoldBlock = 512;  // items

// Items of a half type that were widened and will be narrowed again.
struct WidenedHalf : Plain<float> {
  static constexpr bool kHasTwoParts = true;
};

template <typename Format>
inline constexpr bool kIsHalf =
    !std::is_same_v<typename Format::Item, typename Format::Value>;

// Folds any number of terms over one block; `offset` and `count` are in items. Partial
// results are not stored in `dst`, because `dst` may be a term that is read later.
template <typename Format, typename Op, std::size_t kFused>
void fold_block(CpuLevel level, std::byte* dst, std::span<const Term> terms,
                const Factors& factors, std::size_t offset, std::size_t count) {
  using Value = typename Format::Value;
  constexpr std::size_t kItem = sizeof(typename Format::Item);
  // float32 copies of a group's terms, for half formats only.
  alignas(64) std::array<std::array<Value, kFoldBlock>, kIsHalf<Format> ? kFused : 1>
      wide;
  const auto partial = std::as_writable_bytes(std::span(wide[0].data(), count));
  std::array<Term, kFused> group;
  std::size_t next = 0;
  while (next < terms.size()) {
    std::size_t size = 0;
    if (next > 0) group[size++] = {partial.data(), 1.0};
    for (; size < kFused && next < terms.size(); ++size, ++next) {
      const std::byte* const data = terms[next].data + offset * kItem;
      group[size] = {data, factors.weight(terms[next])};
      if constexpr (kIsHalf<Format>) {
        widen({wide[size].data(), count}, {data, count * kItem}, Format::kDType, level);
        group[size].data = reinterpret_cast<const std::byte*>(wide[size].data());
      }
    }
    const std::span<const Term> folded(group.data(), size);
    if (next < terms.size()) {
      fold_few<Plain<Value>, Op, kFused>(level, partial.data(), folded,
                                         TwoPart{1.0, 0.0}, count);
      continue;
    }
    std::byte* const out = kIsHalf<Format> ? partial.data() : dst + offset * kItem;
    using Folded = std::conditional_t<kIsHalf<Format>, WidenedHalf, Format>;
    fold_few<Folded, Op, kFused>(level, out, folded, factors.last, count);
  }
  if constexpr (kIsHalf<Format>) {
    narrow({dst + offset * kItem, count * kItem}, {wide[0].data(), count},
           Format::kDType, level);
  }
}

template <typename Format, typename Op, std::size_t kFused>
void fold_many(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
               const Factors& factors) {
  const std::size_t count = dst.size() / sizeof(typename Format::Item);
  for (std::size_t offset = 0; offset < count; offset += kFoldBlock) {
    fold_block<Format, Op, kFused>(level, dst.data(), terms, factors, offset,
                                   std::min(kFoldBlock, count - offset));
  }
}

// Folds any number of terms.
template <typename Format, typename Op, std::size_t kFused>
void fold(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
          const Factors& factors) {
  if (terms.size() > kFused) {
    return fold_many<Format, Op, kFused>(level, dst, terms, factors);
  }
  std::array<Term, kFused> weighted;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    weighted[t] = {terms[t].data, factors.weight(terms[t])};
  }
  fold_few<Format, Op, kFused>(level, dst.data(), {weighted.data(), terms.size()},
                               factors.last,
                               dst.size() / sizeof(typename Format::Item));
}

}  // namespace bluecomm
