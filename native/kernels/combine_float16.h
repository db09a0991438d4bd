// The weighted sum of float16 tensors with the conversion instructions of F16C.
#pragma once

#include <cstddef>
#include <span>

#include "kernels/combine.h"
#include "kernels/factors.h"

namespace bluecomm {

inline constexpr std::size_t kFusedFloat16 = 8;

// Does combine_weighted() for 1 to kFusedFloat16 terms of float16. Returns false
// without doing anything if `level` does not include F16C.
bool combine_float16(CpuLevel level, std::span<std::byte> dst,
                     std::span<const Term> terms, const Factors& factors) noexcept;

}  // namespace bluecomm
