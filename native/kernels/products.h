// Inner products of tensors.
#pragma once

#include <cstddef>
#include <span>

#include "common/dtype.h"
#include "kernels/cpu.h"

namespace bluecomm {

// Returns the number of pairs of n items, including each item with itself.
constexpr std::size_t pair_count(std::size_t n) { return n * (n + 1) / 2; }

// Returns the index of the pair (i, j) among these, with j <= i.
constexpr std::size_t pair_index(std::size_t i, std::size_t j) {
  return pair_count(i) + j;
}

// Two factors, because one double cannot bring every double close to 1.
struct ScalePair {
  double first;
  double second;
};

// Returns factors that divide by 2^exponent when they are applied in this order.
ScalePair divide_by_power(int exponent);

// Returns the exponent that add_products() takes out of a row. For float64, whose
// squares may be too large or too small for a double, it is the exponent of the largest
// number; otherwise it is 0.
int row_exponent(std::span<const std::byte> row, DType dtype);

// products[pair_index(i, j)] += sum over k of row_i[k] * row_j[k], for all j <= i, of
// rows that are first divided by 2^exponent.
//
// Items are converted to float64, in which all sums are computed; the result does not
// depend on the vector instructions of the CPU. `dtype` must be a floating type. Each
// row has `nbytes` bytes, at any alignment, and there is one exponent per row.
void add_products(std::span<double> products, std::span<const std::byte* const> rows,
                  std::span<const int> exponents, std::size_t nbytes, DType dtype,
                  CpuLevel level = cpu_level());

}  // namespace bluecomm
