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

// Returns the weights w with adasum(tensor 0 .. tensor n - 1) = sum of w[i] * tensor i.
//
// `products` are the results of add_products() for whole tensors. The tensors are split
// at the largest power of two below their number: six tensors form the pairs (0, 1),
// (2, 3) and (4, 5), and then the first two pairs are combined. A tensor of zeros does
// not affect the others. NaNs spread to all weights.
std::vector<double> adasum_weights(std::span<const double> products, std::size_t n);

}  // namespace bluecomm
