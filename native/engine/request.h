#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "engine/kinds.h"
#include "kernels/combine.h"

namespace bluecomm {

// A set of ranks that operate together. `ranks[i]` is the global rank of member i;
// `machine_of[i]` the (possibly simulated) machine of member i, 0 .. machines-1,
// members of a machine in ascending order.
struct Group {
  std::uint64_t id = 0;  // same on all members, different for different groups
  std::vector<int> ranks;
  std::vector<int> machine_of;
  int me = 0;  // this rank's index in `ranks`

  int size() const { return static_cast<int>(ranks.size()); }
};

// Member (or machine) index and the weight given to it.
using Weight = std::pair<int, double>;

// One call of an operation on this rank. Memory belongs to the caller until completion.
struct Request {
  Kind kind = Kind::kBarrier;
  std::string name;
  std::shared_ptr<const Group> group;
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;  // of the input
  std::span<const std::byte> input;
  // As long as the result. May be equal to `input`, or apart from it. Unused (empty)
  // where only the other ranks know the length: allgather, alltoall,
  // neighbor_allgather.
  std::span<std::byte> output;
  // Memory for the result of those three. Called once, from Phase::bind, with the rows
  // that came from each member (neighbor_allgather: from each of `sources`) in the
  // order in which they are stacked. Returns exactly `nbytes` bytes that live as long
  // as the operation, or throws.
  std::function<std::span<std::byte>(std::size_t nbytes,
                                     std::span<const std::int64_t> rows)>
      allocate;

  ReduceOp op = ReduceOp::kSum;  // allreduce, reducescatter
  double prescale = 1.0;         // same: factor before ...
  double postscale = 1.0;        // ... and after the reduction (average: not in it)
  int root = 0;                  // broadcast: member index
  // alltoall: rows for each member; empty: the same for all. Adasum: elements of each
  // tensor; empty: all.
  std::vector<std::int64_t> splits;
  bool local_only = false;  // allreduce inside the machine
  // Neighbor operations: member indices (hierarchical: machine indices). Each
  // in-neighbor once; `sources` in the order in which results are stacked
  // (neighbor_allgather).
  double self_weight = 1.0;
  std::vector<Weight> sources;
  std::vector<Weight> destinations;

  std::chrono::steady_clock::time_point deadline;
};

}  // namespace bluecomm
