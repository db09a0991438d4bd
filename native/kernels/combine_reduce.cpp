#include <cstdint>
#include <type_traits>

#include "kernels/combine.h"
#include "kernels/fold.h"

namespace bluecomm {
namespace {

// These operations are rare, so two terms at a time are enough and keep the code small.
constexpr std::size_t kFused = 2;

// Returns NaN if either side is NaN, as torch.minimum does: `a != a` detects a NaN on
// the left, and with a NaN on the right the comparison is false, which selects b.
struct Min {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return ((a < b) | (a != a)) ? a : b;
  }
};

struct Max {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return ((a > b) | (a != a)) ? a : b;
  }
};

// Integers wrap around. The product is computed in an unsigned type at least as wide as
// int, because narrower types would be promoted to int and could overflow.
struct Multiply {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    if constexpr (std::is_floating_point_v<T>) {
      return a * b;
    } else {
      using Wide = std::conditional_t<sizeof(T) == 8, std::uint64_t, std::uint32_t>;
      return static_cast<T>(static_cast<Wide>(a) * static_cast<Wide>(b));
    }
  }
};

struct BitAnd {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return static_cast<T>(a & b);
  }
};

struct BitOr {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return static_cast<T>(a | b);
  }
};

struct BitXor {
  template <typename T>
  BLUECOMM_INLINE static T apply(T a, T b) {
    return static_cast<T>(a ^ b);
  }
};

// Combines bits, whatever the type of the numbers.
template <typename Op>
void combine_bits(CpuLevel level, std::span<std::byte> dst,
                  std::span<const Term> terms) {
  fold<Plain<std::uint8_t>, Op, kFused>(level, dst, terms, {});
}

template <typename Op>
void reduce(CpuLevel level, std::span<std::byte> dst, std::span<const Term> terms,
            double post_scale, DType dtype) {
  const Factors scaled{.last = {post_scale, 0.0}};
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool:  // 0 or 1: the minimum is `and`, the maximum is `or`
      return fold<Plain<std::uint8_t>, Op, kFused>(level, dst, terms, {});
    case DType::kInt8:
      return fold<Plain<std::int8_t>, Op, kFused>(level, dst, terms, {});
    case DType::kInt16:
      return fold<Plain<std::int16_t>, Op, kFused>(level, dst, terms, {});
    case DType::kInt32:
      return fold<Plain<std::int32_t>, Op, kFused>(level, dst, terms, {});
    case DType::kInt64:
      return fold<Plain<std::int64_t>, Op, kFused>(level, dst, terms, {});
    case DType::kFloat16:
      return fold_many<Float16, Op, kFused>(level, dst, terms, scaled);
    case DType::kBfloat16:
      return fold_many<Bfloat16, Op, kFused>(level, dst, terms, scaled);
    case DType::kFloat32:
      return fold<Plain<float>, Op, kFused>(level, dst, terms, scaled);
    case DType::kFloat64:
      return fold<Plain<double>, Op, kFused>(level, dst, terms, scaled);
    case DType::kUInt16:
      return fold<Plain<std::uint16_t>, Op, kFused>(level, dst, terms, {});
    case DType::kUInt32:
      return fold<Plain<std::uint32_t>, Op, kFused>(level, dst, terms, {});
    case DType::kUInt64:
      return fold<Plain<std::uint64_t>, Op, kFused>(level, dst, terms, {});
    default:
      return;  // complex, or is_only_moved()
  }
}

}  // namespace

void combine_reduce(std::span<std::byte> dst, std::span<const Term> terms, ReduceOp op,
                    double post_scale, DType dtype, CpuLevel level) noexcept {
  switch (op) {
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
      return combine_weighted(dst, terms, post_scale, dtype, level);
    case ReduceOp::kMin:
      return reduce<Min>(level, dst, terms, post_scale, dtype);
    case ReduceOp::kMax:
      return reduce<Max>(level, dst, terms, post_scale, dtype);
    case ReduceOp::kProduct:
      return reduce<Multiply>(level, dst, terms, post_scale, dtype);
    case ReduceOp::kBitAnd:
      return combine_bits<BitAnd>(level, dst, terms);
    case ReduceOp::kBitOr:
      return combine_bits<BitOr>(level, dst, terms);
    case ReduceOp::kBitXor:
      return combine_bits<BitXor>(level, dst, terms);
  }
}

}  // namespace bluecomm
