#include <algorithm>
#include <cstdint>

#include "kernels/combine.h"
#include "kernels/combine_float64.h"
#include "kernels/combine_widened.h"
#include "kernels/factors.h"
#include "kernels/fold.h"

namespace bluecomm {
namespace {

// Number of terms that are read side by side. Up to 8 terms, float32 becomes faster;
// other types are rarer, and each number is compiled for each CPU level.
constexpr std::size_t kFusedFloat32 = 8;
constexpr std::size_t kFused = 4;

struct Or {
  BLUECOMM_INLINE static std::uint8_t apply(std::uint8_t a, std::uint8_t b) {
    return a | b;
  }
};

// Computes a sum without factors in float32, any other sum in float64.
void add_float32(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
                 const Factors& factors) {
  if (factors.has_none(terms)) {
    return fold<Plain<float>, Add, kFusedFloat32>(level, dst, terms, factors);
  }
  combine_float32(level, dst, terms, factors);
}

}  // namespace

void combine_weighted(std::span<std::byte> dst, std::span<const Term> terms,
                      double post_scale, DType dtype, CpuLevel level) noexcept {
  // Integers are added as unsigned numbers, which wrap around.
  switch (real_dtype(dtype)) {
    case DType::kUInt8:
    case DType::kInt8:
      return fold<Plain<std::uint8_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt16:
    case DType::kUInt16:
      return fold<Plain<std::uint16_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt32:
    case DType::kUInt32:
      return fold<Plain<std::uint32_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt64:
    case DType::kUInt64:
      return fold<Plain<std::uint64_t>, Add, kFused>(level, dst, terms, {});
    case DType::kBool:
      return fold<Plain<std::uint8_t>, Or, kFused>(level, dst, terms, {});
    case DType::kFloat16:
      return combine_float16(level, dst, terms, factors_of(terms, post_scale));
    case DType::kBfloat16:
      return combine_bfloat16(level, dst, terms, factors_of(terms, post_scale));
    case DType::kFloat32:
      return add_float32(level, dst, terms, factors_of(terms, post_scale));
    case DType::kFloat64: {
      const Factors factors{.last = {post_scale, 0.0}};
      if (!factors.has_none(terms)) {
        return combine_float64(level, dst, terms, post_scale);
      }
      return fold<Plain<double>, Add, kFused>(level, dst, terms, factors);
    }
    default:
      return;  // is_only_moved()
  }
}

void copy_scaled(std::span<std::byte> dst, std::span<const std::byte> src, double scale,
                 DType dtype) noexcept {
  if (scale == 1.0) {
    std::copy(src.begin(), src.end(), dst.begin());  // correct even if dst is src
    return;
  }
  if (!is_floating(dtype)) {  // the loops would ignore the scale, which is 0
    std::fill(dst.begin(), dst.end(), std::byte{0});
    return;
  }
  const Term term{src.data(), 1.0};
  combine_weighted(dst, {&term, 1}, scale, dtype);
}

}  // namespace bluecomm
