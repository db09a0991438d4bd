// Sums of float16 and bfloat16 in float32, or in float64 if float32 cannot represent a
// weight.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/add_widened.h"
#include "kernels/combine_widened.h"
#include "kernels/fold.h"
#include "kernels/groups.h"
#include "kernels/half_lanes.h"

namespace bluecomm {
namespace {

// Returns whether a weight is too large or too small for the range of float32.
bool exceed_float32(std::span<const Term> terms, const Factors& factors) {
  const auto exceeds = [](double factor) {
    const double magnitude = std::abs(factor);
    return magnitude > 0x1p100 || (magnitude > 0.0 && magnitude < 0x1p-100);
  };
  return exceeds(factors.last.value) || std::ranges::any_of(terms, [&](const Term& t) {
           return exceeds(factors.weight(t));
         });
}

// Returns `value` as a float32 that rounds to the same half. Where float32 is inexact,
// the last bit of the result is odd, so that it lies on the same side of every tie.
float round_to_odd(double value) {
  const auto nearest = static_cast<float>(value);
  std::uint32_t bits = std::bit_cast<std::uint32_t>(nearest);
  if (std::abs(static_cast<double>(nearest)) > std::abs(value)) --bits;
  if (static_cast<double>(nearest) != value) bits |= 1u;
  return std::bit_cast<float>(bits);
}

// Such weights are rare, so this adds item by item.
template <typename Item>
void add_in_float64(std::span<std::byte> dst, std::span<const Term> terms,
                    const Factors& factors) {
  for (std::size_t i = 0; i < dst.size() / Item::kBytes; ++i) {
    double sum = -0.0;
    for (const Term& term : terms) {
      float item = 0.0f;
      Item::load(item, term.data, i);
      sum += factors.weight(term) * static_cast<double>(item);
    }
    Item::store(dst.data(), i, round_to_odd(factors.last.value * sum));
  }
}

}  // namespace

void combine_float16(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept {
  if (exceed_float32(terms, factors)) {
    return add_in_float64<Float16Item>(dst, terms, factors);
  }
  if (level == CpuLevel::kBaseline) {  // without instructions for float16
    return fold_many<Float16, Add, kGroupTerms>(level, dst, terms, factors);
  }
  if (factors.last.value == 1.0) {
    using Sum = WidenedSum<true, LastFactor::kNone>;
    return add_terms<Float16Item, Sum>(level, dst, terms, factors, {});
  }
  if (!factors.share) {
    using Sum = WidenedSum<true, LastFactor::kTwoParts>;
    return add_terms<Float16Item, Sum>(level, dst, terms, factors,
                                       TwoFloats(factors.last));
  }
  // Sums of float16 do not overflow in float32, so they need no shares.
  using Sum = WidenedSum<false, LastFactor::kTwoParts>;
  const double share = *factors.share;
  const TwoPart whole{factors.last.value * share, factors.last.rest * share};
  add_terms<Float16Item, Sum>(level, dst, terms, factors, TwoFloats(whole));
}

void combine_bfloat16(CpuLevel level, std::span<std::byte> dst,
                      std::span<const Term> terms, const Factors& factors) noexcept {
  if (exceed_float32(terms, factors)) {
    return add_in_float64<Bfloat16Item>(dst, terms, factors);
  }
  if (factors.last.value == 1.0) {
    using Sum = WidenedSum<true, LastFactor::kNone>;
    return add_terms<Bfloat16Item, Sum>(level, dst, terms, factors, {});
  }
  using Sum = WidenedSum<true, LastFactor::kTwoParts>;
  add_terms<Bfloat16Item, Sum>(level, dst, terms, factors, TwoFloats(factors.last));
}

}  // namespace bluecomm
