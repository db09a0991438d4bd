// Weighted sums of float32, computed in float64 where float32 would round twice.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/combine.h"
#include "kernels/factors.h"

namespace bluecomm {

// Does combine_weighted() for float32.
void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept;

}  // namespace bluecomm
