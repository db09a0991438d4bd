#include <cmath>
#include <limits>
#include <optional>
#include <random>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

constexpr ReduceOp kEveryOp[] = {ReduceOp::kSum, ReduceOp::kAverage, ReduceOp::kMin,
                                 ReduceOp::kMax, ReduceOp::kProduct};
constexpr Algorithm kAmongEquals[] = {Algorithm::kFlat, Algorithm::kDoubling,
                                      Algorithm::kDirect, Algorithm::kBlocks,
                                      Algorithm::kRing};

// Returns thresholds under which only `algorithm` is chosen, also between machines.
Tuning only(Algorithm algorithm) {
  constexpr std::size_t kAny = std::numeric_limits<std::size_t>::max();
  Tuning tuning;
  tuning.flat_members = algorithm == Algorithm::kFlat ? 1000 : 0;
  tuning.flat_bytes = kAny;
  tuning.flat_memory_bytes = kAny;
  tuning.doubling_bytes = algorithm == Algorithm::kDoubling ? kAny : 0;
  const bool is_blocks = algorithm == Algorithm::kBlocks;
  tuning.direct_members = algorithm == Algorithm::kDirect || is_blocks ? 1000 : 0;
  tuning.block_bytes = is_blocks ? 256 : kAny;
  tuning.ring_slice_bytes = kAny;
  return tuning;
}

struct AllreduceCase {
  std::vector<int> machine_of;
  DType dtype = DType::kFloat32;
  ReduceOp op = ReduceOp::kSum;
  std::int64_t count = 301;
  bool in_place = false;
  double prescale = 1.0;
  double postscale = 1.0;
  bool local_only = false;
  std::optional<Algorithm> algorithm = std::nullopt;
};

std::vector<Expected> expected_of(const AllreduceCase& test,
                                  const SimulatedWorld& world,
                                  const std::vector<std::vector<double>>& inputs,
                                  int member) {
  std::vector<Expected> expected;
  for (std::size_t k = 0; k < static_cast<std::size_t>(test.count); ++k) {
    std::vector<double> values;
    for (int i = 0; i < world.size(); ++i) {
      if (test.local_only && test.machine_of[i] != test.machine_of[member]) continue;
      values.push_back(test.prescale * inputs[i][k]);
    }
    expected.push_back(reduce(test.op, test.dtype, values, test.postscale));
  }
  return expected;
}

// Returns the algorithm that was used.
Algorithm check_allreduce(const AllreduceCase& test, const Tuning& tuning,
                          unsigned seed = 1) {
  SimulatedWorld world(test.machine_of);
  std::mt19937 random(seed);
  std::vector<std::vector<double>> inputs;
  for (int i = 0; i < world.size(); ++i) {
    const std::size_t nbytes =
        static_cast<std::size_t>(test.count) * item_size(test.dtype);
    world.set_tensor(i, test.dtype, {test.count}, nbytes, test.in_place);
    fill_random(world[i].input, test.dtype, test.op, random);
    inputs.push_back(values_of(world[i].input, test.dtype));
    Call& call = world[i].call;
    call.kind = Kind::kAllreduce;
    call.op = test.op;
    call.prescale = test.prescale;
    call.postscale = test.postscale;
    call.local_only = test.local_only;
    call.algorithm = test.algorithm;
  }
  world.plan(tuning);
  world.run(seed);

  int wrong = 0;
  for (int i = 0; i < world.size(); ++i) {
    const std::vector<Expected> expected = expected_of(test, world, inputs, i);
    const std::vector<double> got = values_of(world[i].result, test.dtype);
    CHECK_EQ(got.size(), expected.size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      if (!(std::abs(got[k] - expected[k].value) <= expected[k].tolerance)) ++wrong;
    }
    for (int j = 0; j < i; ++j) {
      if (!test.local_only || test.machine_of[i] == test.machine_of[j]) {
        CHECK(world[i].result == world[j].result);
      }
    }
    if (!test.in_place) CHECK(values_of(world[i].input_after, test.dtype) == inputs[i]);
  }
  CHECK_EQ(wrong, 0);
  return world[0].plan.algorithm;
}

TEST(allreduce, gives_all_members_the_same_bits_for_each_dtype_and_op) {
  unsigned seed = 0;
  for (Algorithm algorithm : kAmongEquals) {
    for (int n : {2, 3, 5, 8, 17}) {
      for (DType dtype : kEveryDType) {
        for (ReduceOp op : kEveryOp) {
          if (op == ReduceOp::kAverage && !is_floating(dtype)) continue;
          ++seed;
          AllreduceCase test{.machine_of = one_machine(n), .dtype = dtype, .op = op};
          test.in_place = seed % 2 == 0;
          CHECK_EQ(check_allreduce(test, only(algorithm), seed), algorithm);
        }
      }
    }
  }
}

// Returns the results of all members of an allreduce between machines.
std::vector<std::vector<std::byte>> run_between_machines(
    const std::vector<int>& machine_of, const Tuning& tuning, std::int64_t count,
    bool in_place, bool overlaps, unsigned seed) {
  SimulatedWorld world(machine_of);
  std::mt19937 random(7);
  for (int i = 0; i < world.size(); ++i) {
    const std::size_t nbytes = static_cast<std::size_t>(count) * sizeof(float);
    world.set_tensor(i, DType::kFloat32, {count}, nbytes, in_place);
    fill_random(world[i].input, DType::kFloat32, ReduceOp::kSum, random);
    world[i].call.kind = Kind::kAllreduce;
    world[i].call.op = ReduceOp::kAverage;
    world[i].call.prescale = 0.75;
  }
  world.plan(tuning);
  std::vector<std::vector<std::byte>> results;
  for (int i = 0; i < world.size(); ++i) {
    std::vector<Phase>& phases = world[i].plan.phases;
    for (std::size_t p = 0; p < phases.size(); ++p) {
      CHECK_EQ(phases[p].overlaps, p > 0);
      phases[p].overlaps = phases[p].overlaps && overlaps;
    }
  }
  world.run(seed);
  for (int i = 0; i < world.size(); ++i) results.push_back(world[i].result);
  return results;
}

TEST(allreduce, gives_the_same_bits_when_phases_overlap) {
  std::vector<std::vector<int>> layouts{machines_of({2, 2}), machines_of({3, 1, 2})};
  for (int n = 2; n <= 8; ++n) layouts.push_back(machines_of_one(n));
  unsigned seed = 0;
  for (const std::vector<int>& layout : layouts) {
    for (Algorithm algorithm : {Algorithm::kDirect, Algorithm::kRing}) {
      for (std::int64_t count : {1, 17, 333, 5003}) {
        for (bool in_place : {false, true}) {
          const auto run = [&](bool overlaps) {
            return run_between_machines(layout, only(algorithm), count, in_place,
                                        overlaps, ++seed);
          };
          const auto expected = run(false);
          for (int repeat = 0; repeat < 4; ++repeat) CHECK(run(true) == expected);
        }
      }
    }
  }
}

TEST(allreduce, overlaps_no_phases_within_a_machine) {
  for (Algorithm algorithm : kAmongEquals) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      world.set_tensor(i, DType::kFloat32, {1000}, 0, /*in_place=*/true);
      world[i].call.kind = Kind::kAllreduce;
    }
    world.plan(only(algorithm));
    for (const Phase& phase : world[0].plan.phases) CHECK(!phase.overlaps);
  }
}

TEST(allreduce, supports_any_length) {
  for (Algorithm algorithm : kAmongEquals) {
    for (int n : {2, 5, 17}) {
      for (std::int64_t count : {0, 1, 15, 16, 17, 4096}) {
        for (bool in_place : {false, true}) {
          AllreduceCase test{.machine_of = one_machine(n), .count = count};
          test.in_place = in_place;
          check_allreduce(test, only(algorithm), 7);
        }
      }
    }
  }
}

TEST(allreduce, chooses_by_size_and_members) {
  const Tuning tuning;
  AllreduceCase test{.machine_of = one_machine(4), .count = 0};
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kFlat);
  test.count = 1024;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kFlat);
  test.count = 8192;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kFlat);
  test.machine_of = one_machine(5);
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDoubling);
  test.machine_of = machines_of_one(4);
  test.count = 1025;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDoubling);
  test.machine_of = one_machine(4);
  test.count = 8193;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDirect);
  test.count = (4 << 20) / 4 + 1;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kBlocks);
  test.count = 8193;
  test.machine_of = one_machine(17);
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kRing);
  test.machine_of = machines_of_one(3);
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDirect);
  test.count = 3 << 14;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kRing);
  test.machine_of = machines_of_one(2);
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDirect);
  test.machine_of = one_machine(3);
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kDirect);
  test.machine_of = machines_of({2, 1});
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kHierarchical);
  test.count = 1;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kFlat);
}

TEST(allreduce, follows_the_caller_s_choice_of_an_algorithm) {
  for (std::int64_t count : {0, 1, 301, 3000}) {
    for (Algorithm chosen : {Algorithm::kDirect, Algorithm::kRing}) {
      for (const std::vector<int>& machine_of :
           {one_machine(3), std::vector<int>{0, 1, 2, 3, 4}, {0, 1, 0, 1}}) {
        AllreduceCase test{.machine_of = machine_of, .count = count};
        test.algorithm = chosen;
        CHECK_EQ(check_allreduce(test, {}), chosen);
      }
    }
    AllreduceCase test{.machine_of = {0, 1, 0, 2}, .count = count};
    test.algorithm = Algorithm::kHierarchical;
    CHECK_EQ(check_allreduce(test, {}), Algorithm::kHierarchical);
  }
}

TEST(allreduce, direct_takes_exactly_two_phases) {
  for (int n : {2, 3, 16}) {
    SimulatedWorld world(one_machine(n));
    for (int i = 0; i < n; ++i) {
      world.set_tensor(i, DType::kFloat32, {1 << 16}, 0, /*in_place=*/true);
      world[i].call.kind = Kind::kAllreduce;
      world[i].call.op = ReduceOp::kAverage;
      world[i].call.prescale = 0.5;
    }
    world.plan();
    for (int i = 0; i < n; ++i) CHECK_EQ(world[i].plan.phases.size(), 2u);
  }
}

TEST(allreduce, takes_two_phases_for_each_block_up_to_64_blocks) {
  Tuning tuning = only(Algorithm::kBlocks);
  tuning.block_bytes = 1000;
  const auto phases = [&](std::int64_t count) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      world.set_tensor(i, DType::kFloat32, {count}, 0, /*in_place=*/true);
      world[i].call.kind = Kind::kAllreduce;
    }
    world.plan(tuning);
    return world[0].plan.phases.size();
  };
  CHECK_EQ(phases(251), 4u);
  CHECK_EQ(phases(750), 6u);
  CHECK_EQ(phases(1 << 20), 128u);
}

TEST(allreduce, copies_a_large_result_past_the_caches_unless_in_place) {
  Tuning tuning = only(Algorithm::kBlocks);
  tuning.past_caches_bytes = 4000;
  const auto copies_past = [&](std::int64_t count, bool in_place) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      const std::size_t nbytes = static_cast<std::size_t>(count) * sizeof(float);
      world.set_tensor(i, DType::kFloat32, {count}, nbytes, in_place);
      world[i].call.kind = Kind::kAllreduce;
    }
    world.plan(tuning);
    std::size_t all = 0;
    std::size_t past = 0;
    for (const Phase& phase : world[0].plan.phases) {
      for (const Gather& gather : phase.gathers) {
        CHECK(!gather.past_caches || gather.combine == Combine::kCopy);
        if (gather.combine == Combine::kCopy) all += gather.dst.size();
        if (gather.past_caches) past += gather.dst.size();
      }
    }
    CHECK(all > 0 && (past == 0 || past == all));
    return past > 0;
  };
  CHECK(!copies_past(999, false));
  CHECK(!copies_past(1536, true));
  CHECK(copies_past(1536, false));
}

TEST(allreduce, supports_even_and_uneven_machines) {
  const std::vector<std::vector<int>> layouts{
      {2, 2}, {1, 3}, {4, 4, 4}, {3, 2, 1}, {5, 3}, {1, 1, 2}, {2, 1, 1, 1, 1}};
  unsigned seed = 0;
  for (const std::vector<int>& sizes : layouts) {
    for (Algorithm between : {Algorithm::kFlat, Algorithm::kDirect, Algorithm::kRing}) {
      for (std::int64_t count : {1, 15, 33, 301}) {
        for (DType dtype : {DType::kFloat32, DType::kFloat16, DType::kInt8}) {
          ++seed;
          AllreduceCase test{
              .machine_of = machines_of(sizes), .dtype = dtype, .count = count};
          test.in_place = seed % 2 == 0;
          test.prescale = dtype == DType::kFloat32 ? 0.5 : 1.0;
          test.op = is_floating(dtype) ? ReduceOp::kAverage : ReduceOp::kSum;
          CHECK_EQ(check_allreduce(test, only(between), seed),
                   Algorithm::kHierarchical);
        }
      }
    }
  }
}

TEST(allreduce, uses_doubling_between_many_machines) {
  // 19 machines of 2: the pieces are short enough for doubling, but the tensor is not.
  AllreduceCase test{.machine_of = machines_of(std::vector<int>(19, 2)), .count = 500};
  Tuning tuning;
  tuning.flat_members = 0;
  tuning.doubling_bytes = 1500;
  CHECK_EQ(check_allreduce(test, tuning), Algorithm::kHierarchical);
}

TEST(allreduce, supports_members_of_a_machine_in_any_order) {
  // Round robin over three machines, one of which has fewer members.
  AllreduceCase test{.machine_of = {0, 1, 2, 0, 1, 2, 0, 1}, .count = 1000};
  for (bool in_place : {false, true}) {
    test.in_place = in_place;
    CHECK_EQ(check_allreduce(test, only(Algorithm::kDirect)), Algorithm::kHierarchical);
  }
}

TEST(allreduce, scales_before_and_after) {
  for (Algorithm algorithm : kAmongEquals) {
    for (int n : {1, 2, 3, 8, 17}) {
      for (ReduceOp op : kEveryOp) {
        for (bool in_place : {false, true}) {
          AllreduceCase test{.machine_of = one_machine(n), .op = op};
          test.in_place = in_place;
          test.prescale = op == ReduceOp::kProduct ? 0.9 : -0.5;
          test.postscale = 3.0;
          check_allreduce(test, only(algorithm), 5);
        }
      }
    }
  }
}

TEST(allreduce, stays_inside_the_machine_when_local) {
  for (Algorithm algorithm : kAmongEquals) {
    for (bool in_place : {false, true}) {
      AllreduceCase test{.machine_of = machines_of({3, 1, 2}),
                         .op = ReduceOp::kAverage};
      test.in_place = in_place;
      test.local_only = true;
      check_allreduce(test, only(algorithm), 3);
    }
  }
}

TEST(allreduce, copies_in_a_world_of_one) {
  for (std::int64_t count : {0, 1, 100}) {
    for (bool in_place : {false, true}) {
      AllreduceCase test{.machine_of = {0}, .op = ReduceOp::kAverage, .count = count};
      test.in_place = in_place;
      check_allreduce(test, {});
    }
  }
}

}  // namespace
}  // namespace bluecomm::test
