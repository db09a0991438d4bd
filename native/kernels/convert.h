// Conversion of arrays of 16-bit floats to float32 and back.
#pragma once

#include <cstddef>
#include <span>

#include "common/dtype.h"
#include "kernels/cpu.h"

namespace bluecomm {

// dst[k] = float32(src[k]), exactly. `half` is kFloat16 or kBfloat16 and says what
// `src` holds; `src` has 2 * dst.size() bytes, at any alignment.
void widen(std::span<float> dst, std::span<const std::byte> src, DType half,
           CpuLevel level = cpu_level()) noexcept;

// dst[k] = half(src[k]), rounded to nearest, ties to even. Reverses widen().
void narrow(std::span<std::byte> dst, std::span<const float> src, DType half,
            CpuLevel level = cpu_level()) noexcept;

}  // namespace bluecomm
