#include "kernels/cpu.h"

namespace bluecomm {
namespace {

CpuLevel detect() noexcept {
#if defined(__x86_64__)
  __builtin_cpu_init();
  const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("f16c");
  const bool avx512 =
      __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
      __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
  if (avx2 && avx512) return CpuLevel::kAvx512;
  if (avx2) return CpuLevel::kAvx2;
#endif
  return CpuLevel::kBaseline;
}

}  // namespace

CpuLevel cpu_level() noexcept {
  static const CpuLevel level = detect();
  return level;
}

}  // namespace bluecomm
