// Which vector instructions a kernel may use, chosen at run time.
#pragma once

#include <cstdint>

namespace bluecomm {

enum class CpuLevel : std::uint8_t {
  kBaseline = 0,  // what every CPU of the architecture has (SSE2, NEON)
  kAvx2 = 1,      // AVX2 and F16C
  kAvx512 = 2,    // AVX-512 F, BW, DQ, VL and F16C
};

// The best level of this machine. Found once.
CpuLevel cpu_level() noexcept;

}  // namespace bluecomm
