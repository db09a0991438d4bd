#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "kernels/combine.h"

namespace bluecomm {

enum class Kind : std::uint8_t {
  kAllreduce,
  kBroadcast,
  kAllgather,
  kReducescatter,
  kAlltoall,
  kBarrier,
  kNeighborAllgather,
  kNeighborAllreduce,
  kHierarchicalNeighborAllreduce,
  kPairGossip,
};

// A set of ranks that operate together. `ranks[i]` is the global rank of member i;
// `machine_of[i]` the (possibly simulated) machine of member i, 0 .. machines-1, members
// of a machine in ascending order.
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
  std::vector<std::int64_t> shape;     // of the input
  std::span<const std::byte> input;
  // As long as the result; empty where only the other ranks know its length (allgather,
  // alltoall, neighbor_allgather): then the engine allocates it. May be equal to `input`.
  std::span<std::byte> output;

  ReduceOp op = ReduceOp::kSum;        // allreduce, reducescatter
  double prescale = 1.0;               // allreduce: factor before ...
  double postscale = 1.0;              // ... and after the reduction (average: not in it)
  int root = 0;                        // broadcast: member index
  std::vector<std::int64_t> splits;    // alltoall: rows for each member
  bool local_only = false;             // allreduce inside the machine
  // Neighbor operations: member indices (hierarchical: machine indices). Each in-neighbor
  // once; `sources` in the order in which results are stacked (neighbor_allgather).
  double self_weight = 1.0;
  std::vector<Weight> sources;
  std::vector<Weight> destinations;

  std::chrono::steady_clock::time_point deadline;
};

}  // namespace bluecomm
