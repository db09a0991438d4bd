// Compiles one loop for several instruction sets and runs it for the requested one.
//
//   at_level(level, [=] BLUECOMM_INLINE { for (...) dst[i] = a[i] + b[i]; });
//
// The lambda is inlined into one function per level, where the compiler vectorizes it
// for that level. This is an explicit switch rather than target_clones, because the
// resolvers of target_clones run before the sanitizers are initialized, and because
// tests must be able to choose a level.
#pragma once

#include <utility>

#include "kernels/cpu.h"

#define BLUECOMM_INLINE __attribute__((always_inline))

// Precedes a loop whose iterations are independent even though its pointers may be
// equal.
#if defined(__clang__)
#define BLUECOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BLUECOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if defined(__x86_64__)
#define BLUECOMM_TARGET_AVX2 __attribute__((target("avx2,fma,f16c")))
#define BLUECOMM_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,f16c")))
#endif

namespace bluecomm {

#if defined(__x86_64__)
template <typename Body>
BLUECOMM_TARGET_AVX2 auto run_avx2(const Body body) {
  return body();
}

template <typename Body>
BLUECOMM_TARGET_AVX512 auto run_avx512(const Body body) {
  return body();
}
#endif

template <typename Body>
void at_level(CpuLevel level, const Body body) {
#if defined(__x86_64__)
  switch (level) {
    case CpuLevel::kAvx512:
      return run_avx512(body);
    case CpuLevel::kAvx2:
      return run_avx2(body);
    case CpuLevel::kBaseline:
      break;
  }
#else
  static_cast<void>(level);
#endif
  body();
}

}  // namespace bluecomm
