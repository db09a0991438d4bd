#include "engine/collectives/validate.h"

#include <stdexcept>

#include "tests/check.h"
#include "tests/collectives/simulator.h"

namespace bluecomm::test {
namespace {

// A valid call of member 0 of `n`, for a float32 tensor of four elements.
class Good {
 public:
  explicit Good(Kind kind, int n = 2) : world_(one_machine(n)) {
    world_.set_tensor(0, DType::kFloat32, {4}, 16);
    Call& call = world_[0].call;
    call.kind = kind;
    call.name = "x";
    if (kind == Kind::kAllgather || kind == Kind::kAlltoall ||
        kind == Kind::kNeighborAllgather) {
      call.output = {};
    }
  }

  Call& call() { return world_[0].call; }
  void set_dtype(DType dtype) {
    world_.set_tensor(0, dtype, {4}, 4 * item_size(dtype));
  }

 private:
  SimulatedWorld world_;
};

template <typename Spoil>
void check_refused(Kind kind, Spoil spoil, std::string_view why, int n = 2) {
  Good good(kind, n);
  spoil(good.call());
  CHECK_THROWS(make_plan(good.call()), std::invalid_argument, why);
}

TEST(validate, names_operation_name_and_rank) {
  check_refused(
      Kind::kBroadcast, [](Call& r) { r.root = 2; },
      "broadcast 'x' on rank 100: expected a root from 0 to 1, got 2");
  check_refused(Kind::kBroadcast, [](Call& r) { r.root = -1; }, "got -1");
}

TEST(validate, needs_an_algorithm_that_fits) {
  check_refused(
      Kind::kAllreduce, [](Call& r) { r.algorithm = Algorithm::kFlat; },
      "expected algorithm direct, ring or hierarchical");
  check_refused(
      Kind::kAllreduce, [](Call& r) { r.algorithm = Algorithm::kHierarchical; },
      "algorithm hierarchical needs several machines, of which one has several");
  const auto choose_for_adasum = [](Call& r) {
    r.op = ReduceOp::kAdasum;
    r.algorithm = Algorithm::kRing;
  };
  check_refused(Kind::kAllreduce, choose_for_adasum,
                "adasum has an algorithm of its own; leave algorithm out");
}

TEST(validate, needs_a_complete_group) {
  const auto change = [](auto edit) {
    return [edit](Call& call) {
      auto group = std::make_shared<Group>(*call.group);
      edit(*group);
      call.group = group;
    };
  };
  check_refused(
      Kind::kBarrier, [](Call& r) { r.group = nullptr; },
      "barrier 'x': expected a group of ranks, got none");
  check_refused(Kind::kBarrier, change([](Group& g) { g.me = 2; }),
                "expected this rank to be one of the group's 2 members, got index 2");
  check_refused(Kind::kBarrier, change([](Group& g) { g.machine_of.pop_back(); }),
                "expected the machine of each of 2 members, got 1");
}

TEST(validate, compares_memory_with_the_shape) {
  for (Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kReducescatter,
                    Kind::kNeighborAllreduce, Kind::kHierarchicalNeighborAllreduce,
                    Kind::kAllgather, Kind::kAlltoall, Kind::kNeighborAllgather}) {
    check_refused(
        kind, [](Call& r) { r.shape = {6}; },
        "the input must have 24 bytes (float32 [6]), got 16");
  }
  check_refused(
      Kind::kAllreduce, [](Call& r) { r.shape = {2, -2}; },
      "dimensions must be at least 0, got shape [2, -2]");
  check_refused(
      Kind::kAllreduce, [](Call& r) { r.shape = {1L << 40, 1L << 40}; },
      "exceeds the address space");
  check_refused(
      Kind::kAllreduce, [](Call& r) { r.output = r.output.first(8); },
      "the output must have 16 bytes, got 8");
  check_refused(
      Kind::kReducescatter, [](Call&) {}, "the output must have 8 bytes, got 16");
}

TEST(validate, refuses_an_output_that_overlaps_in_part) {
  std::vector<std::byte> memory(20);
  for (Kind kind : {Kind::kAllreduce, Kind::kBroadcast, Kind::kNeighborAllreduce}) {
    check_refused(
        kind,
        [&](Call& r) {
          r.input = std::span(memory).first(16);
          r.output = std::span(memory).last(16);
        },
        "the output must be the input itself or must not overlap it");
  }
}

TEST(validate, needs_rows_and_an_allocator) {
  for (Kind kind : {Kind::kAllgather, Kind::kAlltoall, Kind::kNeighborAllgather}) {
    const auto make_scalar = [](Call& r) {
      r.shape = {};
      r.input = r.input.first(4);
    };
    check_refused(kind, make_scalar, "expected a tensor with at least one dimension");
    check_refused(
        kind, [](Call& r) { r.allocate = nullptr; },
        "expected a function that allocates the result");
    std::byte memory[16];
    check_refused(
        kind, [&](Call& r) { r.output = memory; },
        "expected no output, because its length is not known in advance, got 16 bytes");
  }
  std::byte memory[16];
  const std::span<std::byte> all(memory);
  check_refused(
      Kind::kAlltoall, [&](Call& r) { r.outputs.assign(5, all.first(0)); },
      "or for the rows of each of 2 ranks, got 5 outputs");
  check_refused(
      Kind::kAllgather, [&](Call& r) { r.outputs = {all.last(8), all.first(9)}; },
      "expected outputs that do not overlap, got two that share memory");
  check_refused(
      Kind::kReducescatter, [](Call& r) { r.shape = {}; },
      "expected a tensor with at least one dimension");
}

TEST(validate, allows_averages_of_floating_dtypes_only) {
  const auto make_integer = [](Call& r) { r.dtype = DType::kInt32; };
  for (Kind kind : {Kind::kAllreduce, Kind::kHierarchicalNeighborAllreduce}) {
    check_refused(
        kind,
        [&](Call& r) {
          make_integer(r);
          r.op = ReduceOp::kAverage;
        },
        "expected a floating dtype for an average, got int32");
  }
  check_refused(
      Kind::kAllreduce,
      [&](Call& r) {
        make_integer(r);
        r.prescale = 0.5;
      },
      "expected scales of 1 for int32, got prescale 0.5");
  check_refused(
      Kind::kAllreduce,
      [&](Call& r) {
        make_integer(r);
        r.postscale = 2.0;
      },
      "postscale 2.0");
  check_refused(
      Kind::kNeighborAllreduce,
      [&](Call& r) {
        make_integer(r);
        r.self_weight = 0.5;
      },
      "expected weights of 1 for int32, got 0.5");
  check_refused(
      Kind::kNeighborAllreduce,
      [&](Call& r) {
        make_integer(r);
        r.destinations = {{1, 0.25}};
      },
      "got 0.25");
}

TEST(validate, checks_each_neighbor) {
  for (Kind kind : {Kind::kNeighborAllreduce, Kind::kNeighborAllgather}) {
    check_refused(
        kind, [](Call& r) { r.sources = {{2, 1.0}}; },
        "expected each source to be a member from 0 to 1, got 2");
    check_refused(
        kind, [](Call& r) { r.destinations = {{-1, 1.0}}; },
        "expected each destination to be a member from 0 to 1, got -1");
    check_refused(
        kind, [](Call& r) { r.sources = {{0, 1.0}}; },
        "expected each source to be another member than this one, got 0");
    check_refused(
        kind, [](Call& r) { r.sources = {{1, 1.0}, {1, 1.0}}; },
        "expected each source once, got member 1 twice");
  }
  check_refused(
      Kind::kHierarchicalNeighborAllreduce, [](Call& r) { r.sources = {{1, 1.0}}; },
      "expected each source to be a machine from 0 to 0, got 1");
}

TEST(validate, pairs_exactly_two_members) {
  check_refused(
      Kind::kPairGossip, [](Call&) {},
      "expected one member as the only source and the only destination, got 0 sources "
      "and 0 destinations");
  check_refused(
      Kind::kPairGossip,
      [](Call& r) {
        r.sources = {{1, 1.0}};
        r.destinations = {{2, 1.0}};
      },
      "expected one member", 3);
}

TEST(validate, checks_splits) {
  check_refused(
      Kind::kAlltoall, [](Call&) {},
      "expected a first dimension that 3 members can share equally, got 4", 3);
  check_refused(
      Kind::kAlltoall, [](Call& r) { r.splits = {4}; },
      "expected one split for each of 2 members, got 1");
  check_refused(
      Kind::kAlltoall, [](Call& r) { r.splits = {5, -1}; },
      "got a split of 5 when only 4 rows are left");
  check_refused(
      Kind::kAlltoall, [](Call& r) { r.splits = {-1, 5}; }, "got a split of -1");
  check_refused(
      Kind::kAlltoall, [](Call& r) { r.splits = {1, 1}; },
      "expected splits that add up to the 4 rows, got 2");
}

}  // namespace
}  // namespace bluecomm::test
