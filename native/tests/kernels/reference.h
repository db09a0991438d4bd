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

// Folds one item of floating type V; `read(t)` is the item of term t.
template <typename V, typename Read>
V fold_floating(std::span<const Term> terms, ReduceOp op, double post_scale,
                Read read) {
  V result = static_cast<V>(terms[0].weight) * read(0);
  for (std::size_t t = 1; t < terms.size(); ++t) {
    const V value = static_cast<V>(terms[t].weight) * read(t);
    const bool any_nan = std::isnan(result) || std::isnan(value);
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
      case ReduceOp::kAdasum:
        result = result + value;
        break;
      case ReduceOp::kMin:
        result = any_nan ? result + value : (value < result ? value : result);
        break;
      case ReduceOp::kMax:
        result = any_nan ? result + value : (value > result ? value : result);
        break;
      case ReduceOp::kProduct:
        result = result * value;
        break;
    }
  }
  return static_cast<V>(post_scale) * result;
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
    }
  }
  return result;
}

inline bool fold_bool(std::span<const Term> terms, ReduceOp op, std::size_t index) {
  const bool is_and = op == ReduceOp::kMin || op == ReduceOp::kProduct;
  bool result = is_and;
  for (const Term& term : terms) {
    const bool value = item_at<std::uint8_t>(term.data, index) != 0;
    result = is_and ? (result && value) : (result || value);
  }
  return result;
}

template <typename V>
void put_floating(std::byte* out, std::span<const Term> terms, ReduceOp op,
                  double post_scale, std::size_t i) {
  set_item(out, i, fold_floating<V>(terms, op, post_scale, [&](std::size_t t) {
             return item_at<V>(terms[t].data, i);
           }));
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
      const float result = fold_floating<float>(terms, op, post_scale, read);
      return set_item(out, i, float32_to_float16(result));
    }
    case DType::kBfloat16: {
      const auto read = [&](std::size_t t) {
        return bfloat16_to_float32(item_at<std::uint16_t>(terms[t].data, i));
      };
      const float result = fold_floating<float>(terms, op, post_scale, read);
      return set_item(out, i, float32_to_bfloat16(result));
    }
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
      case DType::kUInt8:
      case DType::kInt8:
      case DType::kInt16:
      case DType::kInt32:
      case DType::kInt64:
        std::memcpy(data.data() + i * item_size(dtype), &bits, item_size(dtype));
        break;
    }
  }
}

}  // namespace bluecomm::test
