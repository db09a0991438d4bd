#include "kernels/combine.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "kernels/stream_copy.h"
#include "tests/check.h"
#include "tests/kernels/levels.h"
#include "tests/kernels/reference.h"

namespace bluecomm {
namespace {

constexpr ReduceOp kAllOps[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                ReduceOp::kMax, ReduceOp::kProduct};

// The inputs of one case: `count` items for each term, `misaligned` bytes past a
// boundary.
struct Inputs {
  Inputs(std::size_t term_count, std::size_t count, DType dtype, bool weighted,
         std::size_t misaligned)
      : nbytes(count * item_size(dtype)) {
    std::mt19937_64 random(term_count * 1000 + count);
    for (std::size_t t = 0; t < term_count; ++t) {
      memory.emplace_back(nbytes + 64);
      const std::span<std::byte> data(memory.back().data() + misaligned * (t + 1) % 64,
                                      nbytes);
      test::fill_random(data, dtype, random);
      const double weight = weighted ? 0.1 + 0.3 * static_cast<double>(t) : 1.0;
      terms.push_back({data.data(), weight});
    }
  }

  std::span<std::byte> writable(std::size_t t) {
    return {const_cast<std::byte*>(terms[t].data), nbytes};
  }

  std::size_t nbytes;
  std::vector<std::vector<std::byte>> memory;
  std::vector<Term> terms;
};

std::string describe(DType dtype, ReduceOp op, std::size_t terms, std::size_t count,
                     CpuLevel level) {
  return std::string(dtype_name(dtype)) + ", op " + test::to_text(op) + ", " +
         std::to_string(terms) + " terms of " + std::to_string(count) +
         " items at level " + test::to_text(level);
}

void check_same_bits(std::span<const std::byte> got,
                     std::span<const std::byte> expected, const std::string& what) {
  if (!std::ranges::equal(got, expected)) {
    test::record_failure(__FILE__, __LINE__, "wrong bits: " + what);
  }
}

void check_case(DType dtype, ReduceOp op, std::size_t term_count, std::size_t count,
                bool weighted, std::size_t misaligned) {
  const Inputs inputs(term_count, count, dtype, weighted, misaligned);
  const double post_scale = weighted ? 0.7 : 1.0;
  const auto expected =
      test::expected_result(inputs.terms, op, post_scale, dtype, count);
  for (const CpuLevel level : test::levels()) {
    // One guard byte on each side.
    std::vector<std::byte> out(inputs.nbytes + misaligned + 2, std::byte{0xab});
    const std::span<std::byte> dst(out.data() + 1 + misaligned, inputs.nbytes);
    combine_reduce(dst, inputs.terms, op, post_scale, dtype, level);
    check_same_bits(dst, expected, describe(dtype, op, term_count, count, level));
    CHECK(out[misaligned] == std::byte{0xab});
    CHECK(out.back() == std::byte{0xab});
  }
}

TEST(combine, matches_the_definition_for_all_dtypes_and_operations) {
  for (const DType dtype : test::kAllDTypes) {
    for (const ReduceOp op : kAllOps) {
      for (const std::size_t term_count : {1, 2, 3, 4, 5, 7, 8, 9, 17, 20}) {
        check_case(dtype, op, term_count, 531, false, 0);
        if (is_floating(dtype)) check_case(dtype, op, term_count, 531, true, 0);
      }
    }
  }
}

TEST(combine, handles_every_length_around_vectors_and_blocks) {
  for (const DType dtype : test::kAllDTypes) {
    for (const std::size_t term_count : {2, 3, 11}) {
      for (std::size_t count = 0; count <= 70; ++count) {
        check_case(dtype, ReduceOp::kSum, term_count, count, is_floating(dtype), 0);
      }
      for (const std::size_t count : {511, 512, 513, 1023, 1024, 1025, 2500}) {
        check_case(dtype, ReduceOp::kSum, term_count, count, is_floating(dtype), 0);
        check_case(dtype, ReduceOp::kMax, term_count, count, is_floating(dtype), 0);
      }
    }
  }
}

TEST(combine, handles_any_alignment) {
  for (const DType dtype : test::kAllDTypes) {
    for (const std::size_t misaligned : {1, 2, 3, 7, 13}) {
      for (const std::size_t term_count : {2, 4, 9}) {
        check_case(dtype, ReduceOp::kSum, term_count, 131, is_floating(dtype),
                   misaligned);
        check_case(dtype, ReduceOp::kProduct, term_count, 131, is_floating(dtype),
                   misaligned);
      }
    }
  }
}

TEST(combine, may_overwrite_any_one_term) {
  constexpr std::size_t kCount = 523;  // a little more than a block
  for (const DType dtype : test::kAllDTypes) {
    for (const ReduceOp op : {ReduceOp::kSum, ReduceOp::kMin}) {
      for (const std::size_t term_count : {1, 2, 3, 8, 12}) {
        for (std::size_t own = 0; own < term_count; ++own) {
          for (const CpuLevel level : test::levels()) {
            Inputs inputs(term_count, kCount, dtype, is_floating(dtype), 0);
            const auto expected =
                test::expected_result(inputs.terms, op, 1.0, dtype, kCount);
            combine_reduce(inputs.writable(own), inputs.terms, op, 1.0, dtype, level);
            check_same_bits(inputs.writable(own), expected,
                            describe(dtype, op, term_count, kCount, level) +
                                " over term " + std::to_string(own));
          }
        }
      }
    }
  }
}

TEST(combine, does_not_depend_on_how_the_tensor_is_cut) {
  constexpr std::size_t kCount = 3001;
  for (const DType dtype : test::kAllDTypes) {
    for (const std::size_t term_count : {3, 10}) {
      const Inputs inputs(term_count, kCount, dtype, is_floating(dtype), 0);
      std::vector<std::byte> whole(inputs.nbytes);
      combine_weighted(whole, inputs.terms, 1.0, dtype);
      std::vector<std::byte> pieces(inputs.nbytes);
      const std::size_t item = item_size(dtype);
      std::size_t piece = 1;
      for (std::size_t start = 0; start < kCount;
           start += piece, piece = 2 * piece + 1) {
        const std::size_t count = std::min(piece, kCount - start);
        std::vector<Term> terms = inputs.terms;
        for (Term& term : terms) term.data += start * item;
        combine_weighted(std::span(pieces).subspan(start * item, count * item), terms,
                         1.0, dtype);
      }
      check_same_bits(pieces, whole, std::string(dtype_name(dtype)));
    }
  }
}

TEST(combine, nan_wins_in_minimum_and_maximum_on_either_side) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> a = {nan, 1.0f, nan, 3.0f};
  const std::vector<float> b = {2.0f, nan, nan, -4.0f};
  const std::vector<Term> terms = {{std::as_bytes(std::span(a)).data()},
                                   {std::as_bytes(std::span(b)).data()}};
  for (const CpuLevel level : test::levels()) {
    std::vector<float> out(4);
    combine_reduce(std::as_writable_bytes(std::span(out)), terms, ReduceOp::kMin, 1.0,
                   DType::kFloat32, level);
    CHECK(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[2]));
    CHECK_EQ(out[3], -4.0f);
    combine_reduce(std::as_writable_bytes(std::span(out)), terms, ReduceOp::kMax, 1.0,
                   DType::kFloat32, level);
    CHECK(std::isnan(out[0]) && std::isnan(out[1]) && std::isnan(out[2]));
    CHECK_EQ(out[3], 3.0f);
  }
}

// Both products are 1 + 2^-11 + 2^-24 and are rounded to 1 + 2^-11. A fused
// multiply-add would keep the last bit of one of them.
TEST(combine, rounds_each_product_before_adding) {
  const std::vector<float> x(64, 1.0f + 0x1p-12f);
  const auto data = std::as_bytes(std::span(x)).data();
  const std::vector<Term> terms = {{data, -1.0 - 0x1p-12}, {data, 1.0 + 0x1p-12}};
  for (const CpuLevel level : test::levels()) {
    std::vector<float> out(64, 1.0f);
    combine_weighted(std::as_writable_bytes(std::span(out)), terms, 1.0,
                     DType::kFloat32, level);
    CHECK(std::ranges::all_of(out, [](float value) { return value == 0.0f; }));
  }
}

TEST(combine, half_types_round_once_at_the_end) {
  // 2048 + 1 + 1 in float16 would stay at 2048 if each sum were rounded.
  const std::vector<std::uint16_t> big(20, float32_to_float16(2048.0f));
  const std::vector<std::uint16_t> one(20, float32_to_float16(1.0f));
  const auto big_data = std::as_bytes(std::span(big)).data();
  const auto one_data = std::as_bytes(std::span(one)).data();
  for (const std::size_t ones : {2, 10}) {
    std::vector<Term> terms = {{big_data}};
    for (std::size_t t = 0; t < ones; ++t) terms.push_back({one_data});
    for (const CpuLevel level : test::levels()) {
      std::vector<std::uint16_t> out(20);
      combine_weighted(std::as_writable_bytes(std::span(out)), terms, 1.0,
                       DType::kFloat16, level);
      for (const std::uint16_t half : out) {
        CHECK_EQ(float16_to_float32(half), 2048.0f + static_cast<float>(ones));
      }
    }
  }
}

TEST(combine, keeps_the_sign_of_zero) {
  const std::vector<float> zero(9, -0.0f);
  const Term term{std::as_bytes(std::span(zero)).data(), 0.5};
  std::vector<float> out(9, 1.0f);
  combine_weighted(std::as_writable_bytes(std::span(out)), {&term, 1}, 1.0,
                   DType::kFloat32);
  CHECK(std::ranges::all_of(out, [](float value) { return std::signbit(value); }));
}

TEST(combine, copy_scaled_copies_and_scales) {
  std::vector<double> x = {1.0, -2.0, 0.5};
  std::vector<double> out(3);
  const auto out_bytes = std::as_writable_bytes(std::span(out));
  copy_scaled(out_bytes, std::as_bytes(std::span(x)), 1.0, DType::kFloat64);
  CHECK(out == x);
  copy_scaled(out_bytes, std::as_bytes(std::span(x)), -0.5, DType::kFloat64);
  CHECK(out == (std::vector<double>{-0.5, 1.0, -0.25}));
  copy_scaled(out_bytes, out_bytes, 2.0, DType::kFloat64);
  CHECK(out == (std::vector<double>{-1.0, 2.0, -0.5}));
}

TEST(combine, copy_scaled_by_zero_leaves_zeros_of_integers) {
  const std::vector<std::int32_t> x = {7, -3};
  std::vector<std::int32_t> out = {1, 1};
  const auto out_bytes = std::as_writable_bytes(std::span(out));
  copy_scaled(out_bytes, std::as_bytes(std::span(x)), 0.0, DType::kInt32);
  CHECK(out == (std::vector<std::int32_t>{0, 0}));
}

TEST(combine, stream_copy_copies_at_any_alignment) {
  std::vector<std::byte> src(1000);
  for (std::size_t i = 0; i < src.size(); ++i) src[i] = static_cast<std::byte>(i % 251);
  for (const std::size_t from : {0, 1, 63}) {
    for (const std::size_t to : {0, 1, 17, 64}) {
      for (const std::size_t count : {0, 1, 63, 64, 65, 500}) {
        std::vector<std::byte> dst(1000);
        stream_copy(std::span(dst).subspan(to, count),
                    std::span(std::as_const(src)).subspan(from, count));
        std::vector<std::byte> expected(1000);
        std::copy_n(src.begin() + static_cast<std::ptrdiff_t>(from), count,
                    expected.begin() + static_cast<std::ptrdiff_t>(to));
        CHECK(dst == expected);
      }
    }
  }
}

}  // namespace
}  // namespace bluecomm
