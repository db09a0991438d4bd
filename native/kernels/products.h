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

// products[pair_index(i, j)] += sum over k of row_i[k] * row_j[k], for all j <= i.
//
// Items are converted to float64, in which all sums are computed; the result does not
// depend on the vector instructions of the CPU. `dtype` must be a floating type. Each
// row has `nbytes` bytes, at any alignment.
void add_products(std::span<double> products, std::span<const std::byte* const> rows,
                  std::size_t nbytes, DType dtype, CpuLevel level = cpu_level());

}  // namespace bluecomm
