// Inner products of tensors.
#pragma once

#include <cstddef>
#include <span>

#include "common/dtype.h"
#include "kernels/cpu.h"

namespace bluecomm {

// Pairs of n things, each with itself too.
constexpr std::size_t pair_count(std::size_t n) { return n * (n + 1) / 2; }

// Where the pair of i and j <= i stands among them.
constexpr std::size_t pair_index(std::size_t i, std::size_t j) {
  return pair_count(i) + j;
}

// products[pair_index(i, j)] += sum over k of row_i[k] * row_j[k], for all j <= i.
//
// Items are converted to float64 first, and so are the sums, which do not depend on the
// vector instructions of the CPU. `dtype` is a floating type; each row has `nbytes`
// bytes, at any alignment.
void add_products(std::span<double> products, std::span<const std::byte* const> rows,
                  std::size_t nbytes, DType dtype, CpuLevel level = cpu_level());

}  // namespace bluecomm
