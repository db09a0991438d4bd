// The input of a rank that has joined: the neutral value of a reduction. The dispatcher
// fills memory with it before it takes part in another rank's operation.
#include "engine/neutral.h"

#include <cstdint>
#include <cstring>
#include <limits>

#include "kernels/half.h"

namespace bluecomm {
namespace {

enum class Neutral { kZero, kOne, kLargest, kSmallest, kAllBits };

Neutral neutral_of(ReduceOp op, double prescale) noexcept {
  switch (op) {
    case ReduceOp::kProduct:
      return Neutral::kOne;
    case ReduceOp::kMin:
      return prescale < 0 ? Neutral::kSmallest : Neutral::kLargest;
    case ReduceOp::kMax:
      return prescale < 0 ? Neutral::kLargest : Neutral::kSmallest;
    case ReduceOp::kSum:
    case ReduceOp::kAverage:
    case ReduceOp::kAdasum:
    case ReduceOp::kBitOr:
    case ReduceOp::kBitXor:
      return Neutral::kZero;
    case ReduceOp::kBitAnd:
      return Neutral::kAllBits;
  }
  return Neutral::kZero;
}

template <typename T>
void fill(std::span<std::byte> memory, T value) noexcept {
  for (std::size_t at = 0; at + sizeof value <= memory.size(); at += sizeof value) {
    std::memcpy(memory.data() + at, &value, sizeof value);
  }
}

// Returns the value in a type of numbers; `one` stands for 1.
template <typename T>
T number(Neutral neutral, T one) noexcept {
  using Limits = std::numeric_limits<T>;
  switch (neutral) {
    case Neutral::kZero:
    case Neutral::kAllBits:  // of no number; see fill_neutral()
      return 0;
    case Neutral::kOne:
      return one;
    case Neutral::kLargest:
      return Limits::has_infinity ? Limits::infinity() : Limits::max();
    case Neutral::kSmallest:
      return Limits::has_infinity ? -Limits::infinity() : Limits::lowest();
  }
  return 0;
}

}  // namespace

void fill_neutral(std::span<std::byte> memory, DType dtype, ReduceOp op,
                  double prescale) noexcept {
  const Neutral neutral = neutral_of(op, prescale);
  if (neutral == Neutral::kAllBits) return fill(memory, std::uint8_t{0xFF});
  const double one = prescale == 0 ? 1.0 : 1.0 / prescale;
  const float single = number(neutral, static_cast<float>(one));
  switch (real_dtype(dtype)) {
    case DType::kUInt8:
      return fill(memory, number<std::uint8_t>(neutral, 1));
    case DType::kInt8:
      return fill(memory, number<std::int8_t>(neutral, 1));
    case DType::kInt16:
      return fill(memory, number<std::int16_t>(neutral, 1));
    case DType::kInt32:
      return fill(memory, number<std::int32_t>(neutral, 1));
    case DType::kInt64:
      return fill(memory, number<std::int64_t>(neutral, 1));
    case DType::kFloat16:
      return fill(memory, float32_to_float16(single));
    case DType::kBfloat16:
      return fill(memory, float32_to_bfloat16(single));
    case DType::kFloat32:
      return fill(memory, single);
    case DType::kFloat64:
      return fill(memory, number(neutral, one));
    case DType::kBool: {
      // The product and the minimum are `and`, the others are `or`.
      const bool is_and = neutral == Neutral::kOne || neutral == Neutral::kLargest;
      return fill(memory, static_cast<std::uint8_t>(is_and ? 1 : 0));
    }
    case DType::kUInt16:
      return fill(memory, number<std::uint16_t>(neutral, 1));
    case DType::kUInt32:
      return fill(memory, number<std::uint32_t>(neutral, 1));
    case DType::kUInt64:
      return fill(memory, number<std::uint64_t>(neutral, 1));
    default:
      return;  // is_only_moved()
  }
}

}  // namespace bluecomm
