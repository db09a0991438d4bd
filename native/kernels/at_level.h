// Compiles one loop for several instruction sets and calls the one asked for.
//
//   at_level(level, [=] BLUECOMM_INLINE { for (...) dst[i] = a[i] + b[i]; });
//
// The lambda is inlined into one function per level, and there vectorised by the
// compiler for that level. An explicit switch and not the compiler's target_clones:
// their resolvers run before the sanitizers are ready, and tests need each level.
#pragma once

#include <utility>

#include "kernels/cpu.h"

#define BLUECOMM_INLINE __attribute__((always_inline))

// Put before a loop whose iterations are independent, though pointers may be equal.
#if defined(__clang__)
#define BLUECOMM_INDEPENDENT _Pragma("clang loop vectorize(assume_safety)")
#else
#define BLUECOMM_INDEPENDENT _Pragma("GCC ivdep")
#endif

#if defined(__x86_64__)
#define BLUECOMM_TARGET_AVX2 __attribute__((target("avx2,f16c")))
#define BLUECOMM_TARGET_AVX512 \
  __attribute__((target("avx512f,avx512bw,avx512dq,avx512vl,avx2,f16c")))
#endif

namespace bluecomm {

#if defined(__x86_64__)
template <typename Body>
BLUECOMM_TARGET_AVX2 void run_avx2(const Body body) {
  body();
}

template <typename Body>
BLUECOMM_TARGET_AVX512 void run_avx512(const Body body) {
  body();
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
