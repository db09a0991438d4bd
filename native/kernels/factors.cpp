#include "kernels/factors.h"

#include <algorithm>
#include <bit>
#include <cmath>

#include "kernels/leading.h"

namespace bluecomm {

TwoPart exact_factor(double factor) noexcept {
  constexpr double kMaxDivisor = 0x1p26;
  if (!(factor >= 1.0 / kMaxDivisor && factor <= 1.0)) return {factor, 0.0};
  const double m = std::nearbyint(1.0 / factor);
  if (1.0 / m != factor) return {factor, 0.0};
  // Neither of the products is rounded.
  const double head = leading_bits(factor);
  return {factor, ((1.0 - head * m) - (factor - head) * m) / m};
}

bool Factors::has_none(std::span<const Term> terms) const {
  return last.value == 1.0 && std::ranges::all_of(terms, [&](const Term& term) {
           return weight(term) == 1.0;
         });
}

Factors factors_of(std::span<const Term> terms, double post_scale) noexcept {
  const double weight = terms[0].weight;
  const bool are_equal = std::ranges::all_of(
      terms, [weight](const Term& term) { return term.weight == weight; });
  if (!are_equal || weight * post_scale == 1.0) return {.last = {post_scale, 0.0}};

  // A power of two, so that taking a share is exact.
  const auto shares = static_cast<double>(std::bit_ceil(terms.size()));
  const TwoPart factor = exact_factor(weight * post_scale);
  return {1.0 / shares, {factor.value * shares, factor.rest * shares}};
}

TwoFloats::TwoFloats(const TwoPart& factor) noexcept
    : head(static_cast<float>(factor.value)) {
  if (std::abs(head) > std::abs(factor.value)) head = std::nextafter(head, 0.0f);
  tail = static_cast<float>((factor.value - head) + factor.rest);
  if (tail == 0.0f || std::signbit(tail) != std::signbit(head)) tail = head * 0x1p-26f;
}

}  // namespace bluecomm
