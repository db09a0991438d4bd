// The weighted sums of types that are computed in the next wider type.
#pragma once

#include <span>

#include "kernels/combine.h"
#include "kernels/factors.h"

namespace bluecomm {

// Each does combine_weighted() for one type.
void combine_float32(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept;
void combine_float16(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept;
void combine_bfloat16(CpuLevel level, std::span<std::byte> dst,
                      std::span<const Term> terms, const Factors& factors) noexcept;

}  // namespace bluecomm
