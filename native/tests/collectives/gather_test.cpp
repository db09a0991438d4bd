// Tests of operations whose results are stacked rows; only the senders know how many
// rows.
#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>
#include <string>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

using Bytes = std::vector<std::byte>;

// Returns the shape of a tensor with rows of `columns` elements, or of one dimension if
// columns < 0.
std::vector<std::int64_t> shape_of(std::int64_t rows, std::int64_t columns) {
  if (columns < 0) return {rows};
  return {rows, columns};
}

// Gives each member `rows[i]` rows of random elements. Returns the tensors.
std::vector<Bytes> set_rows(SimulatedWorld& world, Kind kind, DType dtype,
                            const std::vector<std::int64_t>& rows, std::int64_t columns,
                            unsigned seed) {
  std::mt19937 random(seed);
  std::vector<Bytes> inputs;
  for (int i = 0; i < world.size(); ++i) {
    world.set_tensor(i, dtype, shape_of(rows[i], columns), 0);
    world[i].call.kind = kind;
    world[i].call.output = {};
    fill_random(world[i].input, dtype, ReduceOp::kSum, random);
    inputs.push_back(world[i].input);
  }
  return inputs;
}

std::vector<std::int64_t> random_rows(int n, std::mt19937& random) {
  std::vector<std::int64_t> rows;
  for (int i = 0; i < n; ++i) rows.push_back(static_cast<std::int64_t>(random() % 40));
  return rows;
}

TEST(allgather, stacks_unequal_rows_in_member_order) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (DType dtype : kEveryDType) {
      for (std::int64_t columns : {-1, 0, 1, 37}) {
        std::mt19937 random(++seed);
        std::vector<std::int64_t> rows = random_rows(n, random);
        rows.back() = 0;
        SimulatedWorld world(one_machine(n));
        const auto inputs =
            set_rows(world, Kind::kAllgather, dtype, rows, columns, seed);
        world.plan();
        world.run(seed);
        Bytes expected;
        for (const Bytes& input : inputs) {
          expected.insert(expected.end(), input.begin(), input.end());
        }
        for (int i = 0; i < n; ++i) {
          CHECK(world[i].result == expected);
          CHECK(world[i].rows == rows);
          CHECK(world[i].input_after == inputs[i]);
        }
      }
    }
  }
}

TEST(neighbor_allgather, stacks_in_the_order_of_the_sources) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (std::int64_t columns : {-1, 0, 3}) {
      std::mt19937 random(++seed);
      const std::vector<std::int64_t> rows = random_rows(n, random);
      SimulatedWorld world(one_machine(n));
      const auto inputs = set_rows(world, Kind::kNeighborAllgather, DType::kFloat32,
                                   rows, columns, seed);
      for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
          if (i == j || random() % 2 == 0) continue;
          world[i].call.sources.emplace_back(j, 1.0);
          world[j].call.destinations.emplace_back(i, 1.0);
        }
        std::shuffle(world[i].call.sources.begin(), world[i].call.sources.end(),
                     random);
      }
      world.plan();
      world.run(seed);
      for (int i = 0; i < n; ++i) {
        Bytes expected;
        std::vector<std::int64_t> expected_rows;
        for (const auto& [j, weight] : world[i].call.sources) {
          expected.insert(expected.end(), inputs[j].begin(), inputs[j].end());
          expected_rows.push_back(rows[j]);
        }
        CHECK(world[i].result == expected);
        CHECK(world[i].rows == expected_rows);
      }
    }
  }
}

TEST(alltoall, distributes_the_rows_by_the_splits) {
  unsigned seed = 0;
  for (int n : {1, 2, 3, 5, 8, 17}) {
    for (std::int64_t columns : {-1, 0, 5}) {
      std::mt19937 random(++seed);
      std::vector<std::vector<std::int64_t>> splits;
      std::vector<std::int64_t> rows;
      for (int i = 0; i < n; ++i) {
        splits.push_back(random_rows(n, random));
        splits.back()[random() % n] = 0;
        rows.push_back(0);
        for (std::int64_t split : splits.back()) rows.back() += split;
      }
      SimulatedWorld world(one_machine(n));
      const auto inputs =
          set_rows(world, Kind::kAlltoall, DType::kInt32, rows, columns, seed);
      for (int i = 0; i < n; ++i) world[i].call.splits = splits[i];
      world.plan();
      world.run(seed);

      const std::size_t row = 4 * static_cast<std::size_t>(columns < 0 ? 1 : columns);
      std::vector<std::size_t> taken(static_cast<std::size_t>(n), 0);
      for (int i = 0; i < n; ++i) {
        Bytes expected;
        std::vector<std::int64_t> expected_rows;
        for (int j = 0; j < n; ++j) {
          const std::size_t length = static_cast<std::size_t>(splits[j][i]) * row;
          const auto first = inputs[j].begin() + static_cast<std::ptrdiff_t>(taken[j]);
          expected.insert(expected.end(), first,
                          first + static_cast<std::ptrdiff_t>(length));
          taken[j] += length;
          expected_rows.push_back(splits[j][i]);
        }
        CHECK(world[i].result == expected);
        CHECK(world[i].rows == expected_rows);
      }
    }
  }
}

TEST(alltoall, without_splits_shares_equally) {
  SimulatedWorld world(one_machine(3));
  const auto inputs = set_rows(world, Kind::kAlltoall, DType::kUInt8, {6, 3, 0}, -1, 1);
  world.plan();
  world.run(1);
  CHECK(world[0].rows == (std::vector<std::int64_t>{2, 1, 0}));
  CHECK(world[2].result == (Bytes{inputs[0][4], inputs[0][5], inputs[1][2]}));
}

// The caller's memory for the rows of all members, and how it passes them.
enum class Given { kWhole, kInPlace, kPieces };

TEST(allgather, fills_the_memory_of_the_caller) {
  for (const Given given : {Given::kWhole, Given::kInPlace, Given::kPieces}) {
    for (const int n : {1, 2, 5}) {
      std::mt19937 random(7);
      const std::vector<std::int64_t> rows = random_rows(n, random);
      const std::size_t total = 12 * static_cast<std::size_t>(std::accumulate(
                                         rows.begin(), rows.end(), std::int64_t{0}));
      SimulatedWorld world(one_machine(n));
      Bytes expected;
      std::size_t offset = 0;
      for (int i = 0; i < n; ++i) {
        world.set_tensor(i, DType::kInt32, {rows[i], 3}, total);
        Call& call = world[i].call;
        call.kind = Kind::kAllgather;
        call.output = {};
        fill_random(world[i].input, DType::kInt32, ReduceOp::kSum, random);
        const Bytes& input = world[i].input;
        expected.insert(expected.end(), input.begin(), input.end());
        std::span<std::byte> rest(world[i].output);
        if (given == Given::kInPlace) {
          const std::span<std::byte> own = rest.subspan(offset, input.size());
          std::copy(input.begin(), input.end(), own.begin());
          call.input = own;
        }
        offset += input.size();
        if (given != Given::kPieces) call.outputs = {rest};
        for (int j = 0; given == Given::kPieces && j < n; ++j) {
          call.outputs.push_back(rest.first(12 * static_cast<std::size_t>(rows[j])));
          rest = rest.subspan(call.outputs.back().size());
        }
      }
      world.plan();
      world.run(3);
      for (int i = 0; i < n; ++i) {
        CHECK(world[i].result == expected);
        CHECK(world[i].rows.empty());  // nothing was allocated
      }
    }
  }
}

TEST(gather, refuses_memory_that_does_not_fit) {
  for (const Kind kind : {Kind::kAllgather, Kind::kAlltoall}) {
    std::vector<std::byte> memory(100);
    const std::span<std::byte> all(memory);
    const auto bind = [&](std::vector<std::span<std::byte>> outputs) {
      SimulatedWorld world(one_machine(2));
      set_rows(world, kind, DType::kFloat32, {2, 2}, 3, 1);
      Call& call = world[0].call;
      call.splits = {};
      call.input = all.first(24);
      call.outputs = std::move(outputs);
      world.plan();
      Phase& phase = world[0].plan.phases[0];
      const std::vector<Arrival> arrivals{{103, 0, 24, 2}};
      phase.bind(arrivals, phase.gathers);
    };
    const std::size_t own = kind == Kind::kAllgather ? 24 : 12;
    CHECK_THROWS(bind({all.last(40)}), std::invalid_argument,
                 "expected an output of " + std::to_string(own + 24) +
                     " bytes for the rows of all ranks, got 40 bytes");
    CHECK_THROWS(bind({all.last(own), all.subspan(24, 25)}), std::invalid_argument,
                 "an output of 24 bytes for the rows of rank 103, got 25 bytes");
    CHECK_THROWS(bind({all.last(own + 1), all.subspan(24, 24)}), std::invalid_argument,
                 "bytes for the rows of this rank, got");
    CHECK_THROWS(bind({all.subspan(12, own + 24)}), std::invalid_argument,
                 "does not overlap the input");
    bind({all.last(own), all.subspan(24, 24)});
  }
}

// Only a defect or an attacker sends an invalid announcement.
TEST(allgather, rejects_rows_of_another_length) {
  SimulatedWorld world(one_machine(2));
  set_rows(world, Kind::kAllgather, DType::kFloat32, {2, 2}, 3, 1);
  world.plan();
  Phase& phase = world[0].plan.phases[0];
  const auto announce = [&](std::size_t nbytes, std::int64_t rows) {
    const std::vector<Arrival> arrivals{{103, 0, nbytes, rows}};
    phase.bind(arrivals, phase.gathers);
  };
  CHECK_THROWS(announce(25, 2), std::invalid_argument,
               "expected rows of 12 bytes from rank 103, got 2 rows in 25 bytes");
  CHECK_THROWS(announce(24, 3), std::invalid_argument, "got 3 rows in 24 bytes");
  CHECK_THROWS(announce(24, -2), std::invalid_argument, "got -2 rows");
}

}  // namespace
}  // namespace bluecomm::test
