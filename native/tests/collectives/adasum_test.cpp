#include <bit>
#include <cmath>
#include <random>
#include <vector>

#include "engine/collectives/adasum_weights.h"
#include "kernels/products.h"
#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/kernels/levels.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

using Values = std::vector<double>;

double product(const Values& a, const Values& b) {
  double sum = 0.0;
  for (std::size_t k = 0; k < a.size(); ++k) sum += a[k] * b[k];
  return sum;
}

// Adasum by its definition, tensor by tensor.
Values adasum(const std::vector<Values>& tensors) {
  if (tensors.size() == 1) return tensors.front();
  const auto middle = static_cast<std::ptrdiff_t>(std::bit_floor(tensors.size() - 1));
  const Values a = adasum({tensors.begin(), tensors.begin() + middle});
  const Values b = adasum({tensors.begin() + middle, tensors.end()});
  const double of_a = product(a, a) > 0 ? 1 - product(a, b) / (2 * product(a, a)) : 1;
  const double of_b = product(b, b) > 0 ? 1 - product(a, b) / (2 * product(b, b)) : 1;
  Values result;
  for (std::size_t k = 0; k < a.size(); ++k)
    result.push_back(of_a * a[k] + of_b * b[k]);
  return result;
}

struct AdasumCase {
  std::vector<int> machine_of;
  DType dtype = DType::kFloat32;
  std::int64_t count = 301;
  std::vector<std::int64_t> splits;
  bool in_place = false;
  bool local_only = false;
  double prescale = 1.0;
  double postscale = 1.0;
};

// Returns the expected result of `member`: adasum of each split, and the sum of the
// rest.
Values expected_of(const AdasumCase& test, const std::vector<Values>& inputs,
                   int member) {
  std::vector<Values> taking_part;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (test.local_only && test.machine_of[i] != test.machine_of[member]) continue;
    taking_part.push_back(inputs[i]);
  }
  Values expected(inputs.front().size(), 0.0);
  for (const Values& input : taking_part) {
    for (std::size_t k = 0; k < input.size(); ++k) expected[k] += input[k];
  }
  std::vector<std::int64_t> splits = test.splits;
  if (splits.empty()) splits = {test.count};
  std::ptrdiff_t begin = 0;
  for (const std::int64_t length : splits) {
    std::vector<Values> tensors;
    for (const Values& input : taking_part) {
      tensors.emplace_back(input.begin() + begin, input.begin() + begin + length);
    }
    const Values result = adasum(tensors);
    std::copy(result.begin(), result.end(), expected.begin() + begin);
    begin += length;
  }
  for (double& value : expected) value *= test.prescale * test.postscale;
  return expected;
}

void check_adasum(const AdasumCase& test, unsigned seed) {
  SimulatedWorld world(test.machine_of);
  std::mt19937 random(seed);
  std::vector<Values> inputs;
  for (int i = 0; i < world.size(); ++i) {
    const std::size_t nbytes =
        static_cast<std::size_t>(test.count) * item_size(test.dtype);
    world.set_tensor(i, test.dtype, {test.count}, nbytes, test.in_place);
    fill_random(world[i].input, test.dtype, ReduceOp::kSum, random);
    inputs.push_back(values_of(world[i].input, test.dtype));
    Call& call = world[i].call;
    call.kind = Kind::kAllreduce;
    call.op = ReduceOp::kAdasum;
    call.splits = test.splits;
    call.local_only = test.local_only;
    call.prescale = test.prescale;
    call.postscale = test.postscale;
  }
  world.plan();
  world.run(seed);

  int wrong = 0;
  for (int i = 0; i < world.size(); ++i) {
    const Values expected = expected_of(test, inputs, i);
    const Values got = values_of(world[i].result, test.dtype);
    CHECK_EQ(got.size(), expected.size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      double magnitude = 1.0;
      for (const Values& input : inputs) magnitude += std::abs(input[k]);
      const double bound = 4 * world.size() * epsilon(test.dtype) * magnitude;
      if (!(std::abs(got[k] - expected[k]) <= bound)) ++wrong;
    }
    for (int j = 0; j < i; ++j) {
      if (!test.local_only || test.machine_of[i] == test.machine_of[j]) {
        CHECK(world[i].result == world[j].result);
      }
    }
    if (!test.in_place) CHECK(values_of(world[i].input_after, test.dtype) == inputs[i]);
  }
  CHECK_EQ(wrong, 0);
}

TEST(adasum, gives_all_members_the_same_bits_for_each_dtype) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 4, 5, 6, 8, 13}) {
    for (DType dtype : kEveryDType) {
      if (!is_floating(dtype)) continue;
      // Sums of only a few numbers may nearly cancel out and become ill-conditioned.
      for (std::int64_t count : {0, 40, 301, 3000}) {
        ++seed;
        check_adasum({.machine_of = one_machine(n),
                      .dtype = dtype,
                      .count = count,
                      .splits = {},
                      .in_place = seed % 2 == 0},
                     seed);
      }
    }
  }
}

TEST(adasum, treats_each_tensor_separately_and_sums_the_rest) {
  for (int n : {1, 2, 3, 4, 7}) {
    for (const auto& splits : std::vector<std::vector<std::int64_t>>{
             {301}, {300}, {0}, {16, 0, 3, 64, 100}, {1, 1, 1, 1}, {150, 151}}) {
      check_adasum({.machine_of = one_machine(n), .splits = splits}, 7);
    }
  }
}

TEST(adasum, supports_scales_and_local_only) {
  check_adasum({.machine_of = machines_of({2, 3}),
                .splits = {},
                .local_only = true,
                .prescale = 0.5,
                .postscale = 3.0},
               1);
  check_adasum({.machine_of = machines_of({2, 3}), .splits = {100}}, 2);
}

TEST(adasum, rejects_invalid_requests) {
  const auto check_refused = [](Kind kind, DType dtype, std::int64_t split,
                                const char* why) {
    SimulatedWorld world(one_machine(2));
    world.set_tensor(0, dtype, {4}, 4 * item_size(dtype));
    world[0].call.kind = kind;
    world[0].call.op = ReduceOp::kAdasum;
    world[0].call.splits = {split};
    CHECK_THROWS(make_plan(world[0].call, {}), std::invalid_argument, why);
  };
  check_refused(Kind::kAllreduce, DType::kInt32, 4,
                "expected a floating dtype for op adasum, got int32");
  check_refused(Kind::kReducescatter, DType::kFloat32, 4,
                "only allreduce supports op adasum");
  check_refused(Kind::kAllreduce, DType::kFloat32, 5, "got a split of 5");
  check_refused(Kind::kAllreduce, DType::kFloat32, -1, "got a split of -1");
}

Values weights_of(const std::vector<Values>& tensors) {
  Values products;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    for (std::size_t j = 0; j <= i; ++j) {
      products.push_back(product(tensors[i], tensors[j]));
    }
  }
  const std::vector<int> exponents(tensors.size(), 0);
  Values weights;
  for (const ScaledNumber& weight : adasum_weights({exponents, products})) {
    weights.push_back(static_cast<double>(std::ldexp(weight.value, weight.exponent)));
  }
  return weights;
}

// Returns the adasum of tensors that have the given items and zeros between them.
Values result_of(DType dtype, const std::vector<Values>& tensors) {
  SimulatedWorld world(one_machine(static_cast<int>(tensors.size())));
  const std::size_t count = 300;
  for (int i = 0; i < world.size(); ++i) {
    world.set_tensor(i, dtype, {static_cast<std::int64_t>(count)},
                     count * item_size(dtype));
    for (std::size_t k = 0; k < tensors[i].size(); ++k) {
      set_value(world[i].input, dtype, k * 200, tensors[i][k]);
    }
    world[i].call.kind = Kind::kAllreduce;
    world[i].call.op = ReduceOp::kAdasum;
  }
  world.plan();
  world.run(1);
  Values result;
  for (std::size_t k = 0; k < tensors[0].size(); ++k) {
    result.push_back(value_at(world[0].result, dtype, k * 200));
  }
  return result;
}

// The smallest number of a type, and one of the largest.
struct Extremes {
  double tiny;
  double huge;
};

Extremes extremes(DType dtype) {
  switch (dtype) {
    case DType::kFloat16:
      return {0x1p-24, 0x1p15};
    case DType::kBfloat16:
      return {0x1p-133, 0x1p126};
    case DType::kFloat32:
      return {0x1p-149, 0x1p126};
    default:
      return {0x1p-1074, 0x1p1022};
  }
}

TEST(adasum, handles_ratios_beyond_the_range_of_the_type) {
  for (const DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    const auto [tiny, huge] = extremes(dtype);
    // Parallel: half of the larger one. Orthogonal: their sum. Opposite: likewise half.
    CHECK(result_of(dtype, {{huge, 0}, {tiny, 0}}) == (Values{huge / 2, 0}));
    CHECK(result_of(dtype, {{tiny, 0}, {huge, 0}}) == (Values{huge / 2, 0}));
    CHECK(result_of(dtype, {{-huge, 0}, {tiny, 0}}) == (Values{-huge / 2, 0}));
    CHECK(result_of(dtype, {{huge, 0}, {0, tiny}}) == (Values{huge, tiny}));
    CHECK(result_of(dtype, {{1, 0}, {tiny, 0}}) == (Values{0.5, 0}));
    // Pairs: (huge, tiny) and (tiny, huge), of which each is huge / 2.
    CHECK(result_of(dtype, {{huge, 0}, {tiny, 0}, {tiny, 0}, {huge, 0}}) ==
          (Values{huge / 2, 0}));
  }
}

TEST(adasum, keeps_equal_tensors_and_zeros_of_any_magnitude) {
  for (const DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    const auto [tiny, huge] = extremes(dtype);
    for (const double value : {tiny, 1.0, huge}) {
      for (const std::size_t n : {2, 3, 4}) {
        const std::vector<Values> equal(n, {value, -value});
        CHECK(result_of(dtype, equal) == equal[0]);
      }
      CHECK(result_of(dtype, {{0, 0}, {value, value}}) == (Values{value, value}));
    }
    CHECK(result_of(dtype, {{0, 0}, {0, 0}}) == (Values{0, 0}));
  }
}

TEST(adasum, sums_orthogonal_and_averages_equal_tensors) {
  CHECK(weights_of({{1, 0, 0}, {0, 2, 0}, {0, 0, 3}}) == (Values{1, 1, 1}));
  CHECK(weights_of({{1, 2}, {1, 2}, {1, 2}, {1, 2}}) ==
        (Values{0.25, 0.25, 0.25, 0.25}));
}

TEST(adasum, is_not_affected_by_zeros) {
  CHECK(weights_of({{0, 0}, {0, 0}}) == (Values{1, 1}));
  CHECK(weights_of({{0, 0}, {1, 2}}) == (Values{1, 1}));
  // The first two cancel out, up to rounding; the third is the result.
  const Values weights = weights_of({{0.1, 0.7}, {-0.1, -0.7}, {3, 4}});
  CHECK_EQ(weights[0], weights[1]);
  CHECK_EQ(weights[2], 1.0);
}

TEST(adasum, spreads_nan) {
  for (const double weight : weights_of({{1, 2}, {NAN, 2}, {3, 4}})) {
    CHECK(std::isnan(weight));
  }
}

TEST(adasum, products_do_not_depend_on_vector_instructions) {
  std::mt19937 random(3);
  for (DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    for (std::size_t count : {0, 1, 255, 256, 700}) {
      std::vector<std::vector<std::byte>> rows(3);
      std::vector<const std::byte*> starts;
      for (auto& row : rows) {
        row.resize(count * item_size(dtype) + 1);
        const auto values = std::span(row).subspan(1);  // at an odd address
        fill_random(values, dtype, ReduceOp::kSum, random);
        starts.push_back(values.data());
      }
      Values expected;
      for (std::size_t i = 0; i < rows.size(); ++i) {
        for (std::size_t j = 0; j <= i; ++j) {
          expected.push_back(product(values_of(std::span(rows[i]).subspan(1), dtype),
                                     values_of(std::span(rows[j]).subspan(1), dtype)));
        }
      }
      Values first;
      for (CpuLevel level : levels()) {
        Values got(pair_count(rows.size()), 0.0);
        const std::vector<int> exponents(rows.size(), 0);
        add_products(got, starts, exponents, count * item_size(dtype), dtype, level);
        if (first.empty()) first = got;
        CHECK(got == first);
        for (std::size_t k = 0; k < got.size(); ++k) {
          CHECK(std::abs(got[k] - expected[k]) <= 1e-9 * (1 + std::abs(expected[k])));
        }
      }
    }
  }
}

}  // namespace
}  // namespace bluecomm::test
