// A plain reference implementation of combine.h, item by item, and inputs for it.
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <vector>

#include "kernels/combine.h"
#include "kernels/half.h"

namespace bluecomm::test {

inline constexpr DType kAllDTypes[] = {
    DType::kUInt8,   DType::kInt8,     DType::kInt16,   DType::kInt32,   DType::kInt64,
    DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64, DType::kBool,
};

template <typename T>
T item_at(const std::byte* data, std::size_t index) {
  T value;
  std::memcpy(&value, data + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void set_item(std::byte* data, std::size_t index, T value) {
  std::memcpy(data + index * sizeof(T), &value, sizeof(T));
}

constexpr bool is_sum(ReduceOp op) {
  return op == ReduceOp::kSum || op == ReduceOp::kAverage || op == ReduceOp::kAdasum;
}

// Folds one item of floating type V without sums; `read(t)` is the item of term t.
template <typename V, typename Read>
V fold_floating(std::span<const Term> terms, ReduceOp op, double post_scale,
                Read read) {
  V result = static_cast<V>(terms[0].weight) * read(0);
  for (std::size_t t = 1; t < terms.size(); ++t) {
    const V value = static_cast<V>(terms[t].weight) * read(t);
    const bool any_nan = std::isnan(result) || std::isnan(value);
    if (op == ReduceOp::kProduct) {
      result = result * value;
    } else if (any_nan) {
      result = result + value;
    } else if (op == ReduceOp::kMin ? value < result : value > result) {
      result = value;
    }
  }
  return static_cast<V>(post_scale) * result;
}

// A number with a precision of at least 113 bits, and a wider range than float64.
using Exact = __float128;

inline Exact exact_factor(double factor) {
  const double m = std::nearbyint(1.0 / factor);
  return 1.0 / m == factor ? Exact(1) / m : Exact(factor);
}

// Sums one item as exactly as possible. Terms with one weight are summed first.
template <typename Read>
Exact sum_exactly(std::span<const Term> terms, double post_scale, Read read) {
  bool is_uniform = true;
  Exact total = 0;
  Exact sum = 0;
  Exact plain = 0;
  for (std::size_t t = 0; t < terms.size(); ++t) {
    const Exact weight = exact_factor(terms[t].weight * post_scale);
    is_uniform = is_uniform && terms[t].weight == terms[0].weight;
    total += weight;
    // A sum of zeros has their sign.
    const Exact item = read(t);
    sum = t == 0 ? weight * item : sum + weight * item;
    plain = t == 0 ? item : plain + item;
  }
  if (is_uniform) return plain * exact_factor(terms[0].weight * post_scale);
  const double excess = static_cast<double>(total - 1);
  return std::abs(excess) < 1e-14 ? sum / total : sum;
}

// Sums one item in type V, in the order of the terms.
template <typename V, typename Read>
V sum_in_order(std::span<const Term> terms, double post_scale, Read read) {
  bool is_uniform = true;
  V sum = static_cast<V>(terms[0].weight) * read(0);
  V plain = read(0);
  for (std::size_t t = 1; t < terms.size(); ++t) {
    is_uniform = is_uniform && terms[t].weight == terms[0].weight;
    sum += static_cast<V>(terms[t].weight) * read(t);
    plain += read(t);
  }
  if (!is_uniform) {
    return static_cast<V>(static_cast<Exact>(post_scale) * static_cast<Exact>(sum));
  }
  const Exact factor = exact_factor(terms[0].weight * post_scale);
  return static_cast<V>(factor * static_cast<Exact>(plain));
}

inline bool is_plain(std::span<const Term> terms, double post_scale) {
  bool is_plain = post_scale == 1.0;
  for (const Term& term : terms) is_plain = is_plain && term.weight == 1.0;
  return is_plain;
}

// Whether these are two terms in halves, whose average float32 rounds once.
inline bool is_half(std::span<const Term> terms, double post_scale) {
  return terms.size() == 2 && terms[0].weight == terms[1].weight &&
         terms[0].weight * post_scale == 0.5;
}

// Folds one item of integer type V, by 64-bit arithmetic modulo 2^64.
template <typename V, typename Read>
V fold_integer(std::size_t count, ReduceOp op, Read read) {
  V result = read(0);
  for (std::size_t t = 1; t < count; ++t) {
    const V value = read(t);
    const auto a = static_cast<std::uint64_t>(static_cast<std::int64_t>(result));
    const auto b = static_cast<std::uint64_t>(static_cast<std::int64_t>(value));
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
      case ReduceOp::kAdasum:
        result = static_cast<V>(a + b);
        break;
      case ReduceOp::kMin:
        result = value < result ? value : result;
        break;
      case ReduceOp::kMax:
        result = value > result ? value : result;
        break;
      case ReduceOp::kProduct:
        result = static_cast<V>(a * b);
        break;
      case ReduceOp::kBitAnd:
        result = static_cast<V>(a & b);
        break;
      case ReduceOp::kBitOr:
        result = static_cast<V>(a | b);
        break;
      case ReduceOp::kBitXor:
        result = static_cast<V>(a ^ b);
        break;
    }
  }
  return result;
}

inline bool fold_bool(std::span<const Term> terms, ReduceOp op, std::size_t index) {
  const bool is_and =
      op == ReduceOp::kMin || op == ReduceOp::kProduct || op == ReduceOp::kBitAnd;
  bool result = is_and;
  for (const Term& term : terms) {
    const bool value = item_at<std::uint8_t>(term.data, index) != 0;
    if (op == ReduceOp::kBitXor) {
      result = result != value;
    } else {
      result = is_and ? (result && value) : (result || value);
    }
  }
  return result;
}

template <typename Read>
float fold_half(std::span<const Term> terms, ReduceOp op, double post_scale,
                Read read) {
  if (is_sum(op)) return sum_in_order<float>(terms, post_scale, read);
  return fold_floating<float>(terms, op, post_scale, read);
}

template <typename V>
void put_floating(std::byte* out, std::span<const Term> terms, ReduceOp op,
                  double post_scale, std::size_t i) {
  const auto read = [&](std::size_t t) { return item_at<V>(terms[t].data, i); };
  if (!is_sum(op))
    return set_item(out, i, fold_floating<V>(terms, op, post_scale, read));
  if (is_plain(terms, post_scale)) {
    return set_item(out, i, sum_in_order<V>(terms, post_scale, read));
  }
  if (std::is_same_v<V, float> && !is_half(terms, post_scale)) {
    return set_item(out, i,
                    static_cast<V>(sum_in_order<double>(terms, post_scale, read)));
  }
  set_item(out, i, static_cast<V>(sum_exactly(terms, post_scale, read)));
}

template <typename V>
void put_integer(std::byte* out, std::span<const Term> terms, ReduceOp op,
                 std::size_t i) {
  set_item(out, i, fold_integer<V>(terms.size(), op, [&](std::size_t t) {
             return item_at<V>(terms[t].data, i);
           }));
}

inline void put_item(std::byte* out, std::span<const Term> terms, ReduceOp op,
                     double post_scale, DType dtype, std::size_t i) {
  switch (dtype) {
    case DType::kUInt8:
      return put_integer<std::uint8_t>(out, terms, op, i);
    case DType::kInt8:
      return put_integer<std::int8_t>(out, terms, op, i);
    case DType::kInt16:
      return put_integer<std::int16_t>(out, terms, op, i);
    case DType::kInt32:
      return put_integer<std::int32_t>(out, terms, op, i);
    case DType::kInt64:
      return put_integer<std::int64_t>(out, terms, op, i);
    case DType::kUInt16:
      return put_integer<std::uint16_t>(out, terms, op, i);
    case DType::kUInt32:
      return put_integer<std::uint32_t>(out, terms, op, i);
    case DType::kUInt64:
      return put_integer<std::uint64_t>(out, terms, op, i);
    case DType::kFloat32:
      return put_floating<float>(out, terms, op, post_scale, i);
    case DType::kFloat64:
      return put_floating<double>(out, terms, op, post_scale, i);
    case DType::kBool:
      return set_item<std::uint8_t>(out, i, fold_bool(terms, op, i) ? 1 : 0);
    case DType::kFloat16: {
      const auto read = [&](std::size_t t) {
        return float16_to_float32(item_at<std::uint16_t>(terms[t].data, i));
      };
      const float result = fold_half(terms, op, post_scale, read);
      return set_item(out, i, float32_to_float16(result));
    }
    case DType::kBfloat16: {
      const auto read = [&](std::size_t t) {
        return bfloat16_to_float32(item_at<std::uint16_t>(terms[t].data, i));
      };
      const float result = fold_half(terms, op, post_scale, read);
      return set_item(out, i, float32_to_bfloat16(result));
    }
    default:
      return;
  }
}

inline std::vector<std::byte> expected_result(std::span<const Term> terms, ReduceOp op,
                                              double post_scale, DType dtype,
                                              std::size_t count) {
  std::vector<std::byte> out(count * item_size(dtype));
  for (std::size_t i = 0; i < count; ++i) {
    put_item(out.data(), terms, op, post_scale, dtype, i);
  }
  return out;
}

// Fills `data` with random items: any bits for integers; for floating types ordinary
// numbers, subnormals, zeros of both signs and infinities of one sign, so that no NaN
// arises.
inline void fill_random(std::span<std::byte> data, DType dtype,
                        std::mt19937_64& random) {
  const std::size_t count = data.size() / item_size(dtype);
  std::normal_distribution<double> normal(0.0, 2.0);
  for (std::size_t i = 0; i < count; ++i) {
    const std::uint64_t bits = random();
    double value = normal(random);
    if (bits % 61 == 0) value = INFINITY;
    if (bits % 61 == 1) value = -0.0;
    if (bits % 61 == 2) value = std::ldexp(value, -20);
    switch (dtype) {
      case DType::kFloat16:
        set_item(data.data(), i, float32_to_float16(static_cast<float>(value)));
        break;
      case DType::kBfloat16:
        set_item(data.data(), i, float32_to_bfloat16(static_cast<float>(value)));
        break;
      case DType::kFloat32:
        set_item(data.data(), i, static_cast<float>(value));
        break;
      case DType::kFloat64:
        set_item(data.data(), i, value);
        break;
      case DType::kBool:
        set_item(data.data(), i, static_cast<std::uint8_t>(bits & 1u));
        break;
      default:
        std::memcpy(data.data() + i * item_size(dtype), &bits, item_size(dtype));
        break;
    }
  }
}

}  // namespace bluecomm::test
