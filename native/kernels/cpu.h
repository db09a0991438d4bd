// Levels of vector instructions, from which kernels are chosen at run time.
#pragma once

#include <cstdint>

namespace bluecomm {

enum class CpuLevel : std::uint8_t {
  kBaseline = 0,  // every CPU of the architecture (SSE2, NEON)
  kAvx2 = 1,      // AVX2, FMA and F16C
  kAvx512 = 2,    // AVX-512 F, BW, DQ and VL, and those
};

// Returns the best level of this machine, which is determined once.
CpuLevel cpu_level() noexcept;

}  // namespace bluecomm
