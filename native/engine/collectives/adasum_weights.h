// Adaptive summation, as weights.
//
// Of two tensors it is
//
//   adasum(a, b) = (1 - a.b / (2 a.a)) a + (1 - a.b / (2 b.b)) b,
//
// the sum where they are orthogonal, the mean where they are equal. Of more, it is
// taken of the adasums of the first and of the last ones. Each adasum is a sum of the
// tensors with weights, so all inner products that come up follow from those of the
// tensors, and no tensor needs to be combined before all weights are known.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace bluecomm {

// Weights w with adasum(tensor 0 .. tensor n - 1) = sum over i of w[i] * tensor i.
//
// `products` are those of add_products() of whole tensors. The tensors are halved at
// the largest power of two below their number, so with six the pairs are (0, 1), (2,
// 3), (4, 5), then the first two of these. A tensor of zeros changes nothing. NaNs
// spread.
std::vector<double> adasum_weights(std::span<const double> products, std::size_t n);

}  // namespace bluecomm
