// Tests the bitwise operations, and the types that have few operations.
#include <complex>
#include <vector>

#include "tests/check.h"
#include "tests/kernels/reference.h"

namespace bluecomm::test {
namespace {

constexpr DType kIntegers[] = {DType::kUInt8,  DType::kInt8,   DType::kInt16,
                               DType::kInt32,  DType::kInt64,  DType::kBool,
                               DType::kUInt16, DType::kUInt32, DType::kUInt64};

void check_against_reference(DType dtype, ReduceOp op, std::size_t terms) {
  std::mt19937_64 random(terms);
  std::vector<std::vector<std::byte>> inputs(terms);
  std::vector<Term> given;
  for (std::vector<std::byte>& input : inputs) {
    input.resize(1003 * item_size(dtype));
    fill_random(input, dtype, random);
    given.push_back({input.data(), 1.0});
  }
  std::vector<std::byte> got(inputs[0].size());
  combine_reduce(got, given, op, 1.0, dtype);
  CHECK(got == expected_result(given, op, 1.0, dtype, 1003));
}

TEST(combine_types, bits_are_combined) {
  for (const DType dtype : kIntegers) {
    for (const ReduceOp op : {ReduceOp::kBitAnd, ReduceOp::kBitOr, ReduceOp::kBitXor}) {
      for (const std::size_t terms : {1UL, 2UL, 5UL}) {
        check_against_reference(dtype, op, terms);
      }
    }
  }
}

TEST(combine_types, unsigned_integers_are_reduced) {
  for (const DType dtype : {DType::kUInt16, DType::kUInt32, DType::kUInt64}) {
    for (const ReduceOp op :
         {ReduceOp::kSum, ReduceOp::kMin, ReduceOp::kMax, ReduceOp::kProduct}) {
      check_against_reference(dtype, op, 3);
    }
  }
}

TEST(combine_types, complex_numbers_are_averaged) {
  const std::vector<std::complex<double>> a{{1.0, 2.0}, {-3.0, 0.5}};
  const std::vector<std::complex<double>> b{{3.0, -4.0}, {1.0, 1.5}};
  const std::vector<Term> terms{{std::as_bytes(std::span(a)).data()},
                                {std::as_bytes(std::span(b)).data()}};
  std::vector<std::complex<double>> got(2);
  combine_reduce(std::as_writable_bytes(std::span(got)), terms, ReduceOp::kAverage, 0.5,
                 DType::kComplex128);
  CHECK(got[0] == std::complex<double>(2.0, -1.0));
  CHECK(got[1] == std::complex<double>(-1.0, 1.0));
}

}  // namespace
}  // namespace bluecomm::test
