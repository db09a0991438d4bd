// Tests reduce, gather and scatter, which have a root, and uneven reducescatter.
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

TEST(reduce, gives_the_root_the_reduction) {
  unsigned seed = 0;
  for (const int n : {1, 2, 3, 5}) {
    for (const std::int64_t count : {0, 1, 1000, 40000}) {
      for (const bool in_place : {false, true}) {
        SimulatedWorld world(one_machine(n));
        std::mt19937 random(++seed);
        const int root = n / 2;
        std::vector<std::vector<double>> inputs;
        for (int i = 0; i < n; ++i) {
          const bool is_root = i == root;
          world.set_tensor(i, DType::kFloat32, {count},
                           is_root ? static_cast<std::size_t>(count) * 4 : 0,
                           in_place && is_root);
          Call& call = world[i].call;
          call.kind = Kind::kReduce;
          call.op = ReduceOp::kAverage;
          call.root = root;
          call.prescale = 3.0;
          fill_random(world[i].input, DType::kFloat32, call.op, random);
          inputs.push_back(values_of(world[i].input, DType::kFloat32));
        }
        world.plan();
        world.run(seed);
        const std::vector<double> got = values_of(world[root].result, DType::kFloat32);
        CHECK_EQ(got.size(), static_cast<std::size_t>(count));
        int wrong = 0;
        for (std::size_t k = 0; k < got.size(); ++k) {
          double sum = 0.0;
          for (const auto& input : inputs) sum += 3.0 * input[k];
          if (std::abs(got[k] - sum / n) > 1e-4) ++wrong;
        }
        CHECK_EQ(wrong, 0);
      }
    }
  }
}

TEST(reduce, wants_no_output_elsewhere) {
  SimulatedWorld world(one_machine(2));
  for (int i = 0; i < 2; ++i) {
    world.set_tensor(i, DType::kFloat32, {4}, 16);
    world[i].call.kind = Kind::kReduce;
  }
  CHECK_THROWS(world.plan(), std::invalid_argument, "expected no output on a rank");
}

TEST(gather, stacks_uneven_rows_at_the_root) {
  for (const int n : {1, 2, 4}) {
    SimulatedWorld world(one_machine(n));
    const int root = n - 1;
    std::vector<std::byte> expected;
    for (int i = 0; i < n; ++i) {
      const std::int64_t rows = 3 * i;
      world.set_tensor(i, DType::kInt16, {rows, 500}, 0);
      for (std::byte& value : world[i].input) value = std::byte(i + 1);
      expected.insert(expected.end(), world[i].input.begin(), world[i].input.end());
      world[i].call.kind = Kind::kGather;
      world[i].call.root = root;
    }
    world.plan();
    world.run(7);
    CHECK(world[root].result == expected);
    for (int i = 0; i < n; ++i) {
      CHECK_EQ(world[i].rows.size(), i == root ? static_cast<std::size_t>(n) : 0U);
    }
  }
}

TEST(scatter, gives_each_member_its_rows) {
  constexpr int kMembers = 3;
  SimulatedWorld world(one_machine(kMembers));
  for (int i = 0; i < kMembers; ++i) {
    world.set_tensor(i, DType::kUInt8, {i == 1 ? 6000 : 0}, 0);
    Call& call = world[i].call;
    call.kind = Kind::kScatter;
    call.root = 1;
    if (i == 1) call.splits = {5000, 0, 1000};
  }
  for (std::size_t k = 0; k < 6000; ++k) world[1].input[k] = std::byte(k % 251);
  const std::vector<std::byte> input = world[1].input;
  world.plan();
  world.run(3);
  CHECK(world[0].result == std::vector<std::byte>(input.begin(), input.begin() + 5000));
  CHECK(world[2].result == std::vector<std::byte>(input.begin() + 5000, input.end()));
  CHECK(world[1].rows.empty());
}

TEST(reducescatter, takes_splits) {
  constexpr int kMembers = 3;
  const std::vector<std::int64_t> splits{4, 0, 3};
  SimulatedWorld world(one_machine(kMembers));
  for (int i = 0; i < kMembers; ++i) {
    const auto rows = static_cast<std::size_t>(splits[static_cast<std::size_t>(i)]);
    world.set_tensor(i, DType::kInt32, {7, 100}, rows * 400);
    for (std::size_t k = 0; k < 700; ++k) {
      set_value(world[i].input, DType::kInt32, k, static_cast<double>(k));
    }
    world[i].call.kind = Kind::kReducescatter;
    world[i].call.splits = splits;
  }
  world.plan();
  world.run(5);
  CHECK_EQ(value_at(world[0].result, DType::kInt32, 399), 3.0 * 399);
  CHECK(world[1].result.empty());
  CHECK_EQ(value_at(world[2].result, DType::kInt32, 0), 3.0 * 400);
  world[0].call.splits = {4, 3};
  CHECK_THROWS(world.plan(), std::invalid_argument, "one split for each of 3 members");
}

}  // namespace
}  // namespace bluecomm::test
