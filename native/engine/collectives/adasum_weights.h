// Adaptive summation, expressed as weights.
//
// The adaptive sum of two tensors is
//
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b,
//
// which is their sum if they are orthogonal and their mean if they are equal. The
// adasum of more than two tensors is the adasum of two results: that of the first
// tensors and that of the last ones. Each adasum is a weighted sum of the tensors, so
// every inner product follows from the inner products of the tensors, and no tensor has
// to be combined before all weights are known.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace bluecomm {

// The inner products of whole tensors that were divided by 2^exponent: the results of
// add_products().
struct InnerProducts {
  std::span<const int> exponents;
  std::span<const double> products;
};

// value * 2^exponent, which may be too large or too small for a double.
struct ScaledNumber {
  long double value;
  int exponent;
};

// Returns the weights w with adasum(tensor 0 .. tensor n - 1) = sum of w[i] * tensor i.
// The exponent of w[i] is minus that of tensor i, so that its value is the weight of
// the divided tensor.
//
// The tensors are split at the largest power of two below their number: six tensors
// form the pairs (0, 1), (2, 3) and (4, 5), and then the first two pairs are combined.
// A tensor of zeros does not affect the others. NaNs spread to all weights.
std::vector<ScaledNumber> adasum_weights(const InnerProducts& inner);

}  // namespace bluecomm
