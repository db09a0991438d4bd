#pragma once

#include <cstddef>
#include <span>

#include "common/dtype.h"
#include "kernels/combine.h"

namespace bluecomm {

// Fills memory with the neutral value, which does not change a reduction whose inputs
// are multiplied by `prescale`: 0 for sums, 1 / prescale for products, the largest
// value for minima, and so on. A prescale of 0 counts as 1.
void fill_neutral(std::span<std::byte> memory, DType dtype, ReduceOp op,
                  double prescale) noexcept;

}  // namespace bluecomm
