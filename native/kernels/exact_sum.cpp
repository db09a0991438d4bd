// Sums products of float64 items and weights with compensation for rounding errors.
//
// An item and a weight are both split into 26 leading bits and the rest, so that the
// product of the leading bits is exact. These products are added by Knuth's two-sum,
// which also returns the rounding error of each addition. The errors and the small
// products are added up separately, where their own roundings do not matter
// (Ogita, Rump and Oishi, "Accurate sum and dot product", SIAM J. Sci. Comput. 26(6),
// 2005).
#include "kernels/exact_sum.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>

#include "kernels/exact_lanes.h"
#include "kernels/leading.h"
#include "kernels/unaligned.h"

namespace bluecomm {
namespace {

// Returns a + b exactly.
TwoPart add(double a, double b) {
  TwoPart result;
  two_sum(result.value, result.rest, a, b);
  result.rest = -result.rest;
  return result;
}

// A factor whose head has 26 bits, so that products with such numbers are exact.
struct SplitFactor {
  double head = 0.0;
  double tail = 0.0;
};

SplitFactor split(const TwoPart& factor) {
  const double head = leading_bits(factor.value);
  return {head, (factor.value - head) + factor.rest};
}

TwoPart multiply(const SplitFactor& factor, double item) {
  const double head = leading_bits(item);
  return {factor.head * head, factor.head * (item - head) + factor.tail * item};
}

// Returns the sum, rounded. The rest is NaN if the value is infinite; a rest of zero
// must not change the sign of a zero.
double rounded(const TwoPart& sum) {
  return std::abs(sum.rest) > 0.0 ? sum.value + sum.rest : sum.value;
}

}  // namespace

ExactFactors::ExactFactors(std::span<const Term> terms, double post_scale)
    : factors_(factors_of(terms, post_scale)) {
  const auto count = static_cast<double>(terms.size());
  if (is_uniform()) {
    const double total = factors_.last.value * share() * count;
    is_average_ = std::abs(total - 1.0) <= 0x1p-52;
    return;
  }
  TwoPart total;
  double magnitude = 0.0;
  for (const Term& term : terms) {
    const TwoPart exact = weight(term);
    const TwoPart next = add(total.value, exact.value);
    total = {next.value, total.rest + (next.rest + exact.rest)};
    magnitude += std::abs(exact.value);
    has_rests_ = has_rests_ || exact.rest != 0.0;
  }
  const double excess = (total.value - 1.0) + total.rest;
  is_average_ = std::abs(excess) <= count * 0x1p-52 * magnitude;
  if (is_average_) excess_ = excess;
}

bool ExactFactors::is_half() const {
  return is_uniform() && factors_.last.value == 1.0 && share() == 0.5;
}

double sum_exactly(std::span<const Term> terms, const ExactFactors& factors,
                   std::size_t index) noexcept {
  const double first = unaligned<double>(terms[0].data)[index].value;
  TwoPart sum{-0.0, -0.0};
  bool differs = !factors.is_average();
  for (const Term& term : terms) {
    const double item = unaligned<double>(term.data)[index].value;
    differs = differs ||
              std::bit_cast<std::uint64_t>(item) != std::bit_cast<std::uint64_t>(first);
    TwoPart product;
    if (factors.is_uniform()) {
      product = {factors.share() * item, -0.0};
    } else {
      const TwoPart weight = factors.weight(term);
      // Divides by 1 + excess, which differs from 1 by a few roundings only.
      const double rest = weight.rest - weight.value * factors.excess();
      product = multiply(split({weight.value, rest}), item);
    }
    const TwoPart next = add(sum.value, product.value);
    sum = {next.value, sum.rest + (next.rest + product.rest)};
  }
  if (!differs) return first;
  if (!factors.is_uniform()) return rounded(sum);
  const SplitFactor last = split(factors.last());
  const TwoPart product = multiply(last, sum.value);
  return rounded({product.value, product.rest + last.head * sum.rest});
}

}  // namespace bluecomm
