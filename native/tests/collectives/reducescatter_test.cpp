#include <cmath>
#include <random>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

struct ReducescatterCase {
  int members = 1;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t rows = 1;
  std::int64_t columns = 1;
  double prescale = 1.0;
  double postscale = 1.0;
};

void check_reducescatter(const ReducescatterCase& test, unsigned seed) {
  SimulatedWorld world(one_machine(test.members));
  std::mt19937 random(seed);
  std::vector<std::vector<double>> inputs;
  const std::size_t row =
      static_cast<std::size_t>(test.columns) * item_size(test.dtype);
  const auto rows_of = [&](int member) {
    return test.rows / test.members + (member < test.rows % test.members ? 1 : 0);
  };
  for (int i = 0; i < test.members; ++i) {
    world.set_tensor(i, test.dtype, {test.rows, test.columns},
                     static_cast<std::size_t>(rows_of(i)) * row);
    fill_random(world[i].input, test.dtype, test.op, random);
    inputs.push_back(values_of(world[i].input, test.dtype));
    Call& call = world[i].call;
    call.kind = Kind::kReducescatter;
    call.op = test.op;
    call.prescale = test.prescale;
    call.postscale = test.postscale;
  }
  world.plan();
  world.run(seed);

  std::size_t k = 0;  // index in the whole tensor
  int wrong = 0;
  for (int i = 0; i < test.members; ++i) {
    CHECK_EQ(world[i].result.size(), static_cast<std::size_t>(rows_of(i)) * row);
    for (double got : values_of(world[i].result, test.dtype)) {
      std::vector<double> values;
      for (const auto& input : inputs) values.push_back(test.prescale * input[k]);
      const Expected expected = reduce(test.op, test.dtype, values, test.postscale);
      if (!(std::abs(got - expected.value) <= expected.tolerance)) ++wrong;
      ++k;
    }
    CHECK(values_of(world[i].input_after, test.dtype) == inputs[i]);
  }
  CHECK_EQ(wrong, 0);
}

TEST(reducescatter, gives_each_member_its_rows_of_the_reduction) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (std::int64_t rows : {0, 1, 7, 40}) {
      for (std::int64_t columns : {0, 1, 13}) {
        for (DType dtype : kEveryDType) {
          check_reducescatter(
              {.members = n, .dtype = dtype, .rows = rows, .columns = columns}, ++seed);
        }
      }
    }
  }
}

TEST(reducescatter, supports_every_op_and_scale) {
  for (ReduceOp op : {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                      ReduceOp::kMax, ReduceOp::kProduct}) {
    check_reducescatter({.members = 3,
                         .op = op,
                         .rows = 10,
                         .columns = 30,
                         .prescale = 0.5,
                         .postscale = 3.0},
                        1);
  }
}

TEST(reducescatter, may_write_over_its_own_rows) {
  SimulatedWorld world(one_machine(2));
  for (int i = 0; i < 2; ++i) {
    world.set_tensor(i, DType::kInt8, {200}, 0, /*in_place=*/true);
    for (std::byte& value : world[i].input) value = std::byte{3};
    Call& call = world[i].call;
    call.kind = Kind::kReducescatter;
    call.output = call.output.subspan(i == 0 ? 0 : 100, 100);
  }
  world.plan();
  world.run(1);
  for (int i = 0; i < 2; ++i) {
    CHECK(world[i].result == std::vector<std::byte>(100, std::byte{6}));
  }
}

}  // namespace
}  // namespace bluecomm::test
