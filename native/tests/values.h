// Access to elements of tensors of any dtype as doubles.
#pragma once

#include <cstddef>
#include <random>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "kernels/combine.h"

namespace bluecomm::test {

inline constexpr DType kEveryDType[] = {
    DType::kUInt8,   DType::kInt8,     DType::kInt16,   DType::kInt32,   DType::kInt64,
    DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64, DType::kBool,
};

double value_at(std::span<const std::byte> tensor, DType dtype, std::size_t index);
void set_value(std::span<std::byte> tensor, DType dtype, std::size_t index,
               double value);
std::vector<double> values_of(std::span<const std::byte> tensor, DType dtype);

// Fills a tensor with values so small that `op` over 17 of them does not overflow the
// dtype.
void fill_random(std::span<std::byte> tensor, DType dtype, ReduceOp op,
                 std::mt19937& random);

// Returns the distance between 1 and the next value, or 0 for exact types.
double epsilon(DType dtype);

// The result of `op` over one element of each tensor, and a bound on the rounding error
// if each element takes part in `values.size()` roundings.
struct Expected {
  double value;
  double tolerance;
};
Expected reduce(ReduceOp op, DType dtype, const std::vector<double>& values,
                double factor = 1.0);

}  // namespace bluecomm::test
