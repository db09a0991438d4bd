#include "tests/values.h"

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/half.h"

namespace bluecomm::test {
namespace {

template <typename T>
T load(std::span<const std::byte> tensor, std::size_t index) {
  T value;
  std::memcpy(&value, tensor.data() + index * sizeof(T), sizeof(T));
  return value;
}

template <typename T>
void store(std::span<std::byte> tensor, std::size_t index, T value) {
  std::memcpy(tensor.data() + index * sizeof(T), &value, sizeof(T));
}

}  // namespace

double value_at(std::span<const std::byte> tensor, DType dtype, std::size_t index) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool:
      return load<std::uint8_t>(tensor, index);
    case DType::kInt8:
      return load<std::int8_t>(tensor, index);
    case DType::kInt16:
      return load<std::int16_t>(tensor, index);
    case DType::kInt32:
      return load<std::int32_t>(tensor, index);
    case DType::kInt64:
      return static_cast<double>(load<std::int64_t>(tensor, index));
    case DType::kFloat16:
      return float16_to_float32(load<std::uint16_t>(tensor, index));
    case DType::kBfloat16:
      return bfloat16_to_float32(load<std::uint16_t>(tensor, index));
    case DType::kFloat32:
      return load<float>(tensor, index);
    case DType::kFloat64:
      return load<double>(tensor, index);
    default:
      break;  // not one of kEveryDType
  }
  return 0.0;
}

void set_value(std::span<std::byte> tensor, DType dtype, std::size_t index,
               double value) {
  switch (dtype) {
    case DType::kUInt8:
    case DType::kBool:
      return store(tensor, index, static_cast<std::uint8_t>(value));
    case DType::kInt8:
      return store(tensor, index, static_cast<std::int8_t>(value));
    case DType::kInt16:
      return store(tensor, index, static_cast<std::int16_t>(value));
    case DType::kInt32:
      return store(tensor, index, static_cast<std::int32_t>(value));
    case DType::kInt64:
      return store(tensor, index, static_cast<std::int64_t>(value));
    case DType::kFloat16:
      return store(tensor, index, float32_to_float16(static_cast<float>(value)));
    case DType::kBfloat16:
      return store(tensor, index, float32_to_bfloat16(static_cast<float>(value)));
    case DType::kFloat32:
      return store(tensor, index, static_cast<float>(value));
    case DType::kFloat64:
      return store(tensor, index, value);
    default:
      break;
  }
}

std::vector<double> values_of(std::span<const std::byte> tensor, DType dtype) {
  std::vector<double> values(tensor.size() / item_size(dtype));
  for (std::size_t i = 0; i < values.size(); ++i)
    values[i] = value_at(tensor, dtype, i);
  return values;
}

void fill_random(std::span<std::byte> tensor, DType dtype, ReduceOp op,
                 std::mt19937& random) {
  const bool is_product = op == ReduceOp::kProduct;
  const auto draw = [&]() -> double {
    if (is_floating(dtype)) {
      std::uniform_real_distribution<double> sum(-1.0, 1.0);
      std::uniform_real_distribution<double> factor(0.75, 1.25);
      return is_product ? factor(random) : sum(random);
    }
    if (dtype == DType::kBool) return static_cast<double>(random() % 2);
    if (is_product) return dtype == DType::kUInt8 || random() % 2 == 0 ? 1.0 : -1.0;
    const double small = static_cast<double>(random() % 8);
    return dtype == DType::kUInt8 ? small : small - 4.0;
  };
  const std::size_t count = tensor.size() / item_size(dtype);
  for (std::size_t i = 0; i < count; ++i) set_value(tensor, dtype, i, draw());
}

double epsilon(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return 0x1p-10;
    case DType::kBfloat16:
      return 0x1p-7;
    case DType::kFloat32:
      return 0x1p-23;
    case DType::kFloat64:
      return 0x1p-52;
    default:
      break;
  }
  return 0.0;
}

Expected reduce(ReduceOp op, DType dtype, const std::vector<double>& values,
                double factor) {
  double result = values[0];
  double magnitude = std::abs(values[0]);
  for (std::size_t i = 1; i < values.size(); ++i) {
    switch (op) {
      case ReduceOp::kSum:
      case ReduceOp::kAverage:
      case ReduceOp::kAdasum:  // the caller has applied the weights
        result += values[i];
        break;
      case ReduceOp::kMin:
        result = std::min(result, values[i]);
        break;
      case ReduceOp::kMax:
        result = std::max(result, values[i]);
        break;
      case ReduceOp::kProduct:
        result *= values[i];
        break;
      default:
        break;
    }
    magnitude = op == ReduceOp::kProduct ? std::max(magnitude, std::abs(result))
                                         : magnitude + std::abs(values[i]);
  }
  if (dtype == DType::kBool) result = std::min(result, 1.0);
  if (op == ReduceOp::kAverage) factor /= static_cast<double>(values.size());
  const double roundings = static_cast<double>(values.size()) + 3.0;
  return {factor * result, epsilon(dtype) * roundings * std::abs(factor) * magnitude};
}

}  // namespace bluecomm::test
