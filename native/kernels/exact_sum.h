// Single items of weighted sums of float64, with twice the precision of float64.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/combine.h"
#include "kernels/factors.h"

namespace bluecomm {

// The weights and the last factor of a sum. Weights that add up to 1, up to rounding,
// are treated as if they added up to 1 exactly.
class ExactFactors {
 public:
  ExactFactors(std::span<const Term> terms, double post_scale);

  bool is_uniform() const { return factors_.share.has_value(); }
  // Whether this is the average of two.
  bool is_half() const;
  // Whether the weights add up to 1, up to rounding.
  bool is_average() const { return is_average_; }
  // Whether some weight is more precise than a double.
  bool has_rests() const { return has_rests_; }

  // The weight of every term of a uniform sum: a power of two, and the factor for a sum
  // of terms without their weights.
  double share() const { return *factors_.share; }
  const TwoPart& last() const { return factors_.last; }
  // The sum of other weights minus 1, by which their sum is to be divided.
  double excess() const { return excess_; }
  // The weight of a term of any other sum.
  TwoPart weight(const Term& term) const {
    return exact_factor(term.weight * factors_.last.value);
  }

 private:
  const Factors factors_;
  double excess_ = 0.0;
  bool is_average_;
  bool has_rests_ = false;
};

// Returns item `index` of the sum, rounded once, for items of any magnitude. An item on
// which all terms of an average agree is kept.
double sum_exactly(std::span<const Term> terms, const ExactFactors& factors,
                   std::size_t index) noexcept;

}  // namespace bluecomm
