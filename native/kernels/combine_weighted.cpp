#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <vector>

#include "kernels/combine.h"
#include "kernels/combine_float16.h"
#include "kernels/combine_float32.h"
#include "kernels/combine_float64.h"
#include "kernels/factors.h"
#include "kernels/fold.h"

namespace bluecomm {
namespace {

// Number of terms that are read side by side. Up to 8 terms, float32 and bfloat16
// become faster; other types are rarer, and each number is compiled for each CPU level.
constexpr std::size_t kFusedFloat32 = 8;
constexpr std::size_t kFused = 4;

struct Add {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return static_cast<T>(a + b);
  }
};

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

// Returns whether a weight is too large or too small for the range of float32.
bool exceed_float32(std::span<const Term> terms, const Factors& factors) {
  const auto exceeds = [](double factor) {
    const double magnitude = std::abs(factor);
    return magnitude > 0x1p100 || (magnitude > 0.0 && magnitude < 0x1p-100);
  };
  return exceeds(factors.last.value) || std::ranges::any_of(terms, [&](const Term& t) {
           return exceeds(factors.weight(t));
         });
}

// Adds terms of a half type in float64, block by block.
void add_half_in_float64(CpuLevel level, std::span<std::byte> dst,
                         std::span<const Term> terms, const Factors& factors,
                         DType half) {
  std::vector<std::array<float, kFoldBlock>> items(terms.size());
  std::vector<Term> widened(terms.begin(), terms.end());
  const std::size_t count = dst.size() / 2;
  for (std::size_t start = 0; start < count; start += kFoldBlock) {
    const std::size_t length = std::min(kFoldBlock, count - start);
    for (std::size_t t = 0; t < terms.size(); ++t) {
      widen({items[t].data(), length}, {terms[t].data + 2 * start, 2 * length}, half,
            level);
      widened[t].data = std::as_bytes(std::span(items[t])).data();
    }
    const std::span<float> sums(items[0].data(), length);
    combine_float32(level, std::as_writable_bytes(sums), widened, factors);
    narrow(dst.subspan(2 * start, 2 * length), sums, half, level);
  }
}

void add_float16(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
                 const Factors& factors) {
  if (exceed_float32(terms, factors)) {
    return add_half_in_float64(level, dst, terms, factors, DType::kFloat16);
  }
  if (terms.size() <= kFusedFloat16 && combine_float16(level, dst, terms, factors)) {
    return;
  }
  fold_many<Float16, Add, kFused>(level, dst, terms, factors);
}

void add_bfloat16(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
                  const Factors& factors) {
  if (exceed_float32(terms, factors)) {
    return add_half_in_float64(level, dst, terms, factors, DType::kBfloat16);
  }
  if (terms.size() <= kFusedFloat32) {
    return fold<Bfloat16, Add, kFusedFloat32>(level, dst, terms, factors);
  }
  fold_many<Bfloat16, Add, kFused>(level, dst, terms, factors);
}

}  // namespace

void combine_weighted(std::span<std::byte> dst, std::span<const Term> terms,
                      double post_scale, DType dtype, CpuLevel level) noexcept {
  // Integers are added as unsigned numbers, which wrap around.
  switch (dtype) {
    case DType::kUInt8:
    case DType::kInt8:
      return fold<Plain<std::uint8_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt16:
      return fold<Plain<std::uint16_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt32:
      return fold<Plain<std::uint32_t>, Add, kFused>(level, dst, terms, {});
    case DType::kInt64:
      return fold<Plain<std::uint64_t>, Add, kFused>(level, dst, terms, {});
    case DType::kBool:
      return fold<Plain<std::uint8_t>, Or, kFused>(level, dst, terms, {});
    case DType::kFloat16:
      return add_float16(level, dst, terms, factors_of(terms, post_scale));
    case DType::kBfloat16:
      return add_bfloat16(level, dst, terms, factors_of(terms, post_scale));
    case DType::kFloat32:
      return add_float32(level, dst, terms, factors_of(terms, post_scale));
    case DType::kFloat64: {
      const Factors factors{.last = {post_scale, 0.0}};
      if (!factors.has_none(terms)) {
        return combine_float64(level, dst, terms, post_scale);
      }
      return fold<Plain<double>, Add, kFused>(level, dst, terms, factors);
    }
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
