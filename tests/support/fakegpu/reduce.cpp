#include "reduce.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>

namespace fakegpu {
namespace {

// A float of few bits. E4M3 has no infinity: all exponents are numbers, and only the
// largest pattern is NaN; it and E5M2 saturate.
template <typename Bits, int kExponent, int kMantissa, bool kHasInfinity,
          bool kSaturates>
struct SmallFloat {
  static constexpr int kBias = (1 << (kExponent - 1)) - 1;
  static constexpr int kMaxExponent = (1 << kExponent) - 1;
  static constexpr int kMaxMantissa = (1 << kMantissa) - 1;

  Bits bits;

  static double largest() {
    const int exponent = kHasInfinity ? kMaxExponent - 1 : kMaxExponent;
    const int mantissa = kHasInfinity ? kMaxMantissa : kMaxMantissa - 1;
    return std::ldexp(1.0 + std::ldexp(mantissa, -kMantissa), exponent - kBias);
  }

  float to_float() const {
    const int mantissa = bits & kMaxMantissa;
    const int exponent = (bits >> kMantissa) & kMaxExponent;
    const bool is_negative = (bits >> (kMantissa + kExponent)) != 0;
    double value = 0;
    if (kHasInfinity && exponent == kMaxExponent) {
      value = mantissa == 0 ? std::numeric_limits<double>::infinity() : std::nan("");
    } else if (!kHasInfinity && exponent == kMaxExponent && mantissa == kMaxMantissa) {
      value = std::nan("");
    } else if (exponent == 0) {
      value = std::ldexp(mantissa, 1 - kBias - kMantissa);
    } else {
      value = std::ldexp(1.0 + std::ldexp(mantissa, -kMantissa), exponent - kBias);
    }
    return static_cast<float>(is_negative ? -value : value);
  }

  // Rounds to the nearest, ties to even.
  static SmallFloat from_float(float value) {
    const Bits sign = static_cast<Bits>(std::signbit(value) << (kMantissa + kExponent));
    const auto pattern = [sign](int exponent, int mantissa) {
      const int bits = (exponent << kMantissa) | mantissa;
      return SmallFloat{static_cast<Bits>(sign | bits)};
    };
    if (std::isnan(value)) return pattern(kMaxExponent, kMaxMantissa);
    const double size = std::abs(static_cast<double>(value));
    if (size == 0) return pattern(0, 0);
    const int exponent =
        std::isinf(value) ? kMaxExponent : std::max(std::ilogb(size), 1 - kBias);
    const double quantum = std::ldexp(1.0, exponent - kMantissa);
    const double rounded = std::nearbyint(size / quantum) * quantum;
    if (std::isinf(value) || rounded > largest()) {
      if (!kSaturates) return pattern(kMaxExponent, 0);
      return from_float(
          static_cast<float>(std::signbit(value) ? -largest() : largest()));
    }
    if (rounded < std::ldexp(1.0, 1 - kBias)) {  // subnormal
      return pattern(0, static_cast<int>(rounded / quantum));
    }
    const int stored = std::ilogb(rounded);
    const double fraction = std::ldexp(rounded, -stored) - 1.0;
    return pattern(stored + kBias, static_cast<int>(std::ldexp(fraction, kMantissa)));
  }
};

using Half = SmallFloat<std::uint16_t, 5, 10, true, false>;
using Bfloat = SmallFloat<std::uint16_t, 8, 7, true, false>;
using E4m3 = SmallFloat<std::uint8_t, 4, 3, false, true>;
using E5m2 = SmallFloat<std::uint8_t, 5, 2, true, true>;

template <typename T>
auto load(const std::byte* at) {
  T item;
  std::memcpy(&item, at, sizeof item);
  if constexpr (std::is_arithmetic_v<T>) {
    return item;
  } else {
    return item.to_float();
  }
}

template <typename T, typename Wide>
void store(std::byte* at, Wide value) {
  T item;
  if constexpr (std::is_arithmetic_v<T>) {
    item = static_cast<T>(value);
  } else {
    item = T::from_float(value);
  }
  std::memcpy(at, &item, sizeof item);
}

// Integers wrap around, so they are added without a sign.
template <typename Wide>
Wide combine(ncclRedOp_t reduction, Wide a, Wide b) {
  if (reduction == kMax) return std::max(a, b);
  if (reduction == kMin) return std::min(a, b);
  if constexpr (std::is_integral_v<Wide>) {
    const auto x = static_cast<std::uint64_t>(a);
    const auto y = static_cast<std::uint64_t>(b);
    return static_cast<Wide>(reduction == kProd ? x * y : x + y);
  } else {
    return reduction == kProd ? a * b : a + b;
  }
}

template <typename T>
void reduce_items(ncclRedOp_t reduction, std::optional<double> scale,
                  const std::vector<const std::byte*>& inputs, std::size_t count,
                  std::byte* out) {
  using Wide = decltype(load<T>(nullptr));
  const auto scaled = [&](const std::byte* at) -> Wide {
    const Wide item = load<T>(at);
    return scale ? static_cast<Wide>(item * static_cast<Wide>(*scale)) : item;
  };
  for (std::size_t i = 0; i < count; ++i) {
    const std::size_t offset = i * sizeof(T);
    Wide all = scaled(inputs[0] + offset);
    for (std::size_t r = 1; r < inputs.size(); ++r) {
      all = combine<Wide>(reduction, all, scaled(inputs[r] + offset));
    }
    if (reduction == kAvg)
      all = static_cast<Wide>(all / static_cast<Wide>(inputs.size()));
    store<T>(out + offset, all);
  }
}

// Calls `body` with an item of the C++ type that is `type`.
template <typename Body>
void with_type(ncclDataType_t type, Body&& body) {
  switch (type) {
    case kInt8:
      body(std::int8_t{});
      break;
    case kUint8:
      body(std::uint8_t{});
      break;
    case kInt32:
      body(std::int32_t{});
      break;
    case kUint32:
      body(std::uint32_t{});
      break;
    case kInt64:
      body(std::int64_t{});
      break;
    case kUint64:
      body(std::uint64_t{});
      break;
    case kFloat16:
      body(Half{});
      break;
    case kFloat32:
      body(float{});
      break;
    case kFloat64:
      body(double{});
      break;
    case kBfloat16:
      body(Bfloat{});
      break;
    case kFloat8E4m3:
      body(E4m3{});
      break;
    case kFloat8E5m2:
      body(E5m2{});
      break;
    default:
      break;
  }
}

}  // namespace

std::size_t size_of(ncclDataType_t type) {
  std::size_t size = 0;
  with_type(type, [&](auto item) { size = sizeof item; });
  return size;
}

void reduce(ncclDataType_t type, ncclRedOp_t reduction, std::optional<double> scale,
            const std::vector<const std::byte*>& inputs, std::size_t count,
            std::byte* out) {
  with_type(type, [&](auto item) {
    reduce_items<decltype(item)>(reduction, scale, inputs, count, out);
  });
}

double item_as_double(ncclDataType_t type, const void* item) {
  double value = 0;
  with_type(type, [&](auto one) {
    value =
        static_cast<double>(load<decltype(one)>(static_cast<const std::byte*>(item)));
  });
  return value;
}

}  // namespace fakegpu
