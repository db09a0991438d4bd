#include "kernels/convert.h"

#include <cstdint>

#include "kernels/at_level.h"
#include "kernels/half.h"
#include "kernels/unaligned.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace bluecomm {
namespace {

void widen_bfloat16(CpuLevel level, float* dst, const std::byte* src,
                    std::size_t count) {
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      dst[i] = bfloat16_to_float32(unaligned<std::uint16_t>(src)[i].value);
    }
  });
}

void narrow_bfloat16(CpuLevel level, std::byte* dst, const float* src,
                     std::size_t count) {
  at_level(level, [=]() BLUECOMM_INLINE {
    BLUECOMM_INDEPENDENT
    for (std::size_t i = 0; i < count; ++i) {
      unaligned<std::uint16_t>(dst)[i].value = float32_to_bfloat16(src[i]);
    }
  });
}

void widen_float16_baseline(float* dst, const std::byte* src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    dst[i] = float16_to_float32(unaligned<std::uint16_t>(src)[i].value);
  }
}

void narrow_float16_baseline(std::byte* dst, const float* src, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) {
    unaligned<std::uint16_t>(dst)[i].value = float32_to_float16(src[i]);
  }
}

#if defined(__x86_64__)

// The compiler does not use F16C by itself. Eight lanes are as fast as memory.
BLUECOMM_TARGET_AVX2 void widen_float16_f16c(float* dst, const std::byte* src,
                                             std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const auto* halves = reinterpret_cast<const __m128i*>(src + 2 * i);
    _mm256_storeu_ps(dst + i, _mm256_cvtph_ps(_mm_loadu_si128(halves)));
  }
  widen_float16_baseline(dst + i, src + 2 * i, count - i);
}

BLUECOMM_TARGET_AVX2 void narrow_float16_f16c(std::byte* dst, const float* src,
                                              std::size_t count) {
  std::size_t i = 0;
  for (; i + 8 <= count; i += 8) {
    const __m128i halves =
        _mm256_cvtps_ph(_mm256_loadu_ps(src + i), _MM_FROUND_TO_NEAREST_INT);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(dst + 2 * i), halves);
  }
  narrow_float16_baseline(dst + 2 * i, src + i, count - i);
}

#endif

void widen_float16(CpuLevel level, float* dst, const std::byte* src,
                   std::size_t count) {
#if defined(__x86_64__)
  if (level != CpuLevel::kBaseline) return widen_float16_f16c(dst, src, count);
#else
  static_cast<void>(level);
#endif
  widen_float16_baseline(dst, src, count);
}

void narrow_float16(CpuLevel level, std::byte* dst, const float* src,
                    std::size_t count) {
#if defined(__x86_64__)
  if (level != CpuLevel::kBaseline) return narrow_float16_f16c(dst, src, count);
#else
  static_cast<void>(level);
#endif
  narrow_float16_baseline(dst, src, count);
}

}  // namespace

void widen(std::span<float> dst, std::span<const std::byte> src, DType half,
           CpuLevel level) noexcept {
  const auto widen_one = half == DType::kBfloat16 ? widen_bfloat16 : widen_float16;
  widen_one(level, dst.data(), src.data(), dst.size());
}

void narrow(std::span<std::byte> dst, std::span<const float> src, DType half,
            CpuLevel level) noexcept {
  const auto narrow_one = half == DType::kBfloat16 ? narrow_bfloat16 : narrow_float16;
  narrow_one(level, dst.data(), src.data(), src.size());
}

}  // namespace bluecomm
