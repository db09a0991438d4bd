// The factors of a weighted sum, arranged so that the sum is rounded once.
#pragma once

#include <optional>
#include <span>

#include "kernels/combine.h"

namespace bluecomm {

// The number value + rest, which two doubles represent more precisely than one.
struct TwoPart {
  double value = 0.0;
  double rest = 0.0;
};

// Returns 1 / m exactly if `factor` is the double nearest to 1 / m for an integer m
// from 1 to 2^26; otherwise returns `factor`.
TwoPart exact_factor(double factor) noexcept;

// The factors of a fold.
struct Factors {
  std::optional<double> share{};  // the weight of every term, instead of its own
  TwoPart last{1.0, 0.0};         // multiplies the folded value

  double weight(const Term& term) const { return share.value_or(term.weight); }
  // Returns whether all factors are 1.
  bool has_none(std::span<const Term> terms) const;
};

// Returns the factors of post_scale * sum of weight * term. Equal weights are taken out
// of the sum: the terms are added in shares that cannot overflow, and the sum is
// multiplied once.
Factors factors_of(std::span<const Term> terms, double post_scale) noexcept;

// A factor as a sum of two floats. Both have the factor's sign, so that their products
// with infinity add up to infinity, and those with a zero to that zero.
struct TwoFloats {
  TwoFloats() = default;
  explicit TwoFloats(const TwoPart& factor) noexcept;
  float head = 1.0f;
  float tail = 0.0f;
};

}  // namespace bluecomm
