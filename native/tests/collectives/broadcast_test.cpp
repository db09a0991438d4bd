#include <random>

#include "tests/check.h"
#include "tests/collectives/simulator.h"
#include "tests/values.h"

namespace bluecomm::test {
namespace {

struct BroadcastCase {
  int members = 1;
  int root = 0;
  DType dtype = DType::kFloat32;
  std::int64_t count = 301;
  bool in_place = false;
};

// Returns the algorithm that was used.
Algorithm check_broadcast(const BroadcastCase& test, const Tuning& tuning,
                          unsigned seed) {
  SimulatedWorld world(one_machine(test.members));
  std::mt19937 random(seed);
  for (int i = 0; i < test.members; ++i) {
    const std::size_t nbytes =
        static_cast<std::size_t>(test.count) * item_size(test.dtype);
    world.set_tensor(i, test.dtype, {test.count}, nbytes, test.in_place);
    fill_random(world[i].input, test.dtype, ReduceOp::kSum, random);
    world[i].call.kind = Kind::kBroadcast;
    world[i].call.root = test.root;
  }
  const std::vector<std::byte> expected = world[test.root].input;
  world.plan(tuning);
  world.run(seed);
  for (int i = 0; i < test.members; ++i) CHECK(world[i].result == expected);
  return world[0].plan.algorithm;
}

// Thresholds that force each algorithm for any size and number of members.
std::vector<Tuning> every_algorithm() {
  Tuning flat;
  flat.broadcast_flat_members = 100;
  Tuning tree;
  tree.broadcast_flat_members = 0;
  tree.broadcast_scatter_bytes = 1 << 30;
  Tuning scatter;
  scatter.broadcast_flat_members = 1;
  scatter.broadcast_scatter_bytes = 0;
  Tuning scatter_ring = scatter;
  scatter_ring.direct_members = 0;
  return {flat, tree, scatter, scatter_ring};
}

TEST(broadcast, copies_the_root_with_each_algorithm) {
  unsigned seed = 0;
  for (const Tuning& tuning : every_algorithm()) {
    for (int n : {1, 2, 3, 5, 8, 17}) {
      for (int root : {0, n / 2, n - 1}) {
        for (std::int64_t count : {0, 1, 301, 3000}) {
          for (bool in_place : {false, true}) {
            BroadcastCase test{.members = n, .root = root, .count = count};
            test.in_place = in_place;
            check_broadcast(test, tuning, ++seed);
          }
        }
      }
    }
  }
}

// The engine notices the mismatch by comparing headers; here it is enough that messages
// of the two roots meet.
TEST(broadcast, two_roots_notice_each_other) {
  for (const Tuning& tuning : every_algorithm()) {
    for (int n : {2, 3, 5, 8}) {
      SimulatedWorld world(one_machine(n));
      for (int i = 0; i < n; ++i) {
        world.set_tensor(i, DType::kUInt8, {10}, 10);
        world[i].call.kind = Kind::kBroadcast;
        world[i].call.root = i == n - 1 ? n - 1 : 0;
      }
      world.plan(tuning);
      CHECK_THROWS(world.run(1), RuleBroken, "");
      CHECK(!world.done(n - 1));
    }
  }
}

TEST(broadcast, supports_every_dtype) {
  for (DType dtype : kEveryDType) {
    check_broadcast({.members = 5, .root = 2, .dtype = dtype}, {}, 1);
  }
}

TEST(broadcast, chooses_by_size_and_members) {
  CHECK_EQ(check_broadcast({.members = 4, .count = 1 << 15}, {}, 1), Algorithm::kFlat);
  CHECK_EQ(check_broadcast({.members = 5, .count = 1000}, {}, 1), Algorithm::kTree);
  CHECK_EQ(check_broadcast({.members = 5, .count = 1 << 14}, {}, 1),
           Algorithm::kScatter);
}

}  // namespace
}  // namespace bluecomm::test
