// The oracle is the mixing matrix W: W[i][j] is the weight that member i gives to the
// tensor of member j, so the result is W @ X.
#include <algorithm>
#include <cmath>
#include <random>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

using Matrix = std::vector<std::vector<double>>;

// Each edge exists with probability 1/2 and has a weight from -1 to 1.
Matrix random_matrix(int n, std::mt19937& random) {
  std::uniform_real_distribution<double> weight(-1.0, 1.0);
  Matrix matrix(static_cast<std::size_t>(n), std::vector<double>(n, 0.0));
  for (int i = 0; i < n; ++i) {
    for (int j = 0; j < n; ++j) {
      if (i == j || random() % 2 == 0) matrix[i][j] = weight(random);
    }
  }
  return matrix;
}

// Sets the weights of row and column `me` in the call: each edge's weight is split
// between sender and receiver.
void set_weights(Call& call, const Matrix& matrix, int me, std::mt19937& random) {
  const int n = static_cast<int>(matrix.size());
  const double at_sender = 0.5;
  call.self_weight = matrix[me][me];
  for (int j = 0; j < n; ++j) {
    if (j == me) continue;
    if (matrix[me][j] != 0.0) {
      call.sources.emplace_back(j, matrix[me][j] / at_sender);
    }
    if (matrix[j][me] != 0.0) call.destinations.emplace_back(j, at_sender);
  }
  std::shuffle(call.sources.begin(), call.sources.end(), random);
  std::shuffle(call.destinations.begin(), call.destinations.end(), random);
}

// Runs the plans and compares the results with matrix @ inputs.
void check_mixes(SimulatedWorld& world, const Matrix& matrix, bool in_place,
                 unsigned seed) {
  const DType dtype = world[0].call.dtype;
  std::mt19937 random(seed);
  std::vector<std::vector<double>> inputs;
  for (int i = 0; i < world.size(); ++i) {
    fill_random(world[i].input, dtype, ReduceOp::kSum, random);
    inputs.push_back(values_of(world[i].input, dtype));
  }
  world.plan();
  world.run(seed);
  int wrong = 0;
  for (int i = 0; i < world.size(); ++i) {
    const std::vector<double> got = values_of(world[i].result, dtype);
    CHECK_EQ(got.size(), inputs[i].size());
    for (std::size_t k = 0; k < got.size(); ++k) {
      double expected = 0.0;
      for (int j = 0; j < world.size(); ++j) expected += matrix[i][j] * inputs[j][k];
      if (!(std::abs(got[k] - expected) <= epsilon(dtype) * 2.0 * (world.size() + 2))) {
        ++wrong;
      }
    }
    if (!in_place) CHECK(values_of(world[i].input_after, dtype) == inputs[i]);
  }
  CHECK_EQ(wrong, 0);
}

void check_neighbor_allreduce(const Matrix& matrix, DType dtype, std::int64_t count,
                              bool in_place, unsigned seed) {
  SimulatedWorld world(one_machine(static_cast<int>(matrix.size())));
  std::mt19937 random(seed);
  for (int i = 0; i < world.size(); ++i) {
    const std::size_t nbytes = static_cast<std::size_t>(count) * item_size(dtype);
    world.set_tensor(i, dtype, {count}, nbytes, in_place);
    world[i].call.kind = Kind::kNeighborAllreduce;
    set_weights(world[i].call, matrix, i, random);
  }
  check_mixes(world, matrix, in_place, seed);
}

TEST(neighbor_allreduce, multiplies_by_the_mixing_matrix) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (DType dtype :
         {DType::kFloat16, DType::kBfloat16, DType::kFloat32, DType::kFloat64}) {
      for (std::int64_t count : {0, 1, 301, 3000}) {
        for (bool in_place : {false, true}) {
          std::mt19937 random(++seed);
          check_neighbor_allreduce(random_matrix(n, random), dtype, count, in_place,
                                   seed);
        }
      }
    }
  }
}

TEST(neighbor_allreduce, without_in_neighbors_scales_a_copy) {
  // Member 0 only sends; member 1 only receives; member 2 does neither.
  const Matrix matrix{{0.5, 0.0, 0.0}, {0.25, 0.5, 0.0}, {0.0, 0.0, 0.5}};
  for (bool in_place : {false, true}) {
    check_neighbor_allreduce(matrix, DType::kFloat32, 2000, in_place, 3);
  }
}

// Each member averages with its `degree` predecessors. The weight is applied by the
// receiver, as with a static topology, or by the sender.
void check_agreement_is_kept(int n, int degree, DType dtype, bool at_sender) {
  SimulatedWorld world(one_machine(n));
  std::mt19937 random(n);
  const double weight = 1.0 / (degree + 1);
  for (int i = 0; i < n; ++i) {
    world.set_tensor(i, dtype, {300}, 300 * item_size(dtype), i % 2 == 0);
    if (i == 0) fill_random(world[0].input, dtype, ReduceOp::kSum, random);
    std::copy(world[0].input.begin(), world[0].input.end(), world[i].input.begin());
    Call& call = world[i].call;
    call.kind = Kind::kNeighborAllreduce;
    call.self_weight = weight;
    for (int hop = 1; hop <= degree; ++hop) {
      call.sources.emplace_back((i + n - hop) % n, at_sender ? 1.0 : weight);
      call.destinations.emplace_back((i + hop) % n, at_sender ? weight : 1.0);
    }
  }
  const std::vector<std::byte> agreed = world[0].input;
  world.plan();
  world.run(1);
  for (int i = 0; i < n; ++i) CHECK(world[i].result == agreed);
}

TEST(neighbor_allreduce, keeps_what_all_members_agree_on) {
  for (DType dtype : kEveryDType) {
    if (!is_floating(dtype)) continue;
    for (int n = 2; n <= 17; ++n) {
      for (bool at_sender : {false, true}) {
        check_agreement_is_kept(n, n - 1, dtype, at_sender);
        check_agreement_is_kept(n, n / 2, dtype, at_sender);
      }
    }
  }
}

TEST(neighbor_allreduce, sums_integers) {
  const Matrix ring{{1, 0, 1}, {1, 1, 0}, {0, 1, 1}};
  for (bool in_place : {false, true}) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      world.set_tensor(i, DType::kInt16, {100}, 200, in_place);
      world[i].call.kind = Kind::kNeighborAllreduce;
      world[i].call.sources.emplace_back((i + 2) % 3, 1.0);
      world[i].call.destinations.emplace_back((i + 1) % 3, 1.0);
    }
    check_mixes(world, ring, in_place, 4);
  }
}

TEST(pair_gossip, averages_two_members) {
  const Matrix matrix{{0.5, 0.0, 0.5}, {0.0, 1.0, 0.0}, {0.25, 0.0, 0.75}};
  for (bool in_place : {false, true}) {
    SimulatedWorld world(one_machine(3));
    for (int i = 0; i < 3; ++i) {
      Call& call = world[i].call;
      world.set_tensor(i, DType::kFloat32, {1000}, 4000, in_place);
      call.kind = i == 1 ? Kind::kNeighborAllreduce : Kind::kPairGossip;
      call.self_weight = matrix[i][i];
      if (i == 1) continue;
      call.sources.emplace_back(2 - i, matrix[i][2 - i]);
      call.destinations.emplace_back(2 - i, 1.0);
    }
    check_mixes(world, matrix, in_place, 5);
  }
}

// Returns the mixing matrix of the members for a mixing matrix of machines: each
// machine first averages its members.
Matrix spread(const Matrix& machines, const std::vector<int>& sizes) {
  const std::vector<int> machine_of = machines_of(sizes);
  Matrix matrix;
  for (int i : machine_of) {
    std::vector<double> row;
    for (int j : machine_of) row.push_back(machines[i][j] / sizes[j]);
    matrix.push_back(row);
  }
  return matrix;
}

void check_hierarchical(const std::vector<int>& sizes, DType dtype, std::int64_t count,
                        bool in_place, unsigned seed) {
  std::mt19937 random(seed);
  const Matrix between = random_matrix(static_cast<int>(sizes.size()), random);
  const std::vector<int> machine_of = machines_of(sizes);
  SimulatedWorld world(machine_of);
  for (int i = 0; i < world.size(); ++i) {
    const std::size_t nbytes = static_cast<std::size_t>(count) * item_size(dtype);
    world.set_tensor(i, dtype, {count}, nbytes, in_place);
    world[i].call.kind = Kind::kHierarchicalNeighborAllreduce;
    set_weights(world[i].call, between, machine_of[i], random);
  }
  check_mixes(world, spread(between, sizes), in_place, seed);
  for (int i = 1; i < world.size(); ++i) {
    if (machine_of[i] == machine_of[i - 1]) {
      CHECK(world[i].result == world[i - 1].result);
    }
  }
}

TEST(hierarchical_neighbor_allreduce, averages_inside_and_mixes_between_machines) {
  const std::vector<std::vector<int>> layouts{{1},          {4},       {1, 1, 1},
                                              {2, 2},       {3, 2},    {1, 4},
                                              {4, 3, 2, 1}, {5, 5, 3}, {1, 3, 1, 2}};
  unsigned seed = 0;
  for (const std::vector<int>& sizes : layouts) {
    for (std::int64_t count : {0, 1, 33, 301, 3000}) {
      for (DType dtype : {DType::kFloat16, DType::kFloat32, DType::kFloat64}) {
        for (bool in_place : {false, true}) {
          check_hierarchical(sizes, dtype, count, in_place, ++seed);
        }
      }
    }
  }
}

}  // namespace
}  // namespace bluecomm::test
