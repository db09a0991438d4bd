// The CPU levels that this machine supports, for tests that compare them.
#pragma once

#include <vector>

#include "kernels/cpu.h"

namespace bluecomm::test {

inline std::vector<CpuLevel> levels() {
  std::vector<CpuLevel> result;
  for (const CpuLevel level :
       {CpuLevel::kBaseline, CpuLevel::kAvx2, CpuLevel::kAvx512}) {
    if (level <= cpu_level()) result.push_back(level);
  }
  return result;
}

}  // namespace bluecomm::test
