// Weighted sums of float64 with twice the precision of float64.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/combine.h"

namespace bluecomm {

// Does combine_weighted() for float64. The sum is computed with an error term for each
// rounding and is rounded once. Weights that add up to 1, up to rounding, are treated
// as if they added up to 1 exactly, and items on which all terms agree are kept.
void combine_float64(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, double post_scale) noexcept;

}  // namespace bluecomm
