#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/dtype.h"
#include "common/gate.h"
#include "common/ticket.h"
#include "engine/kinds.h"
#include "engine/plan.h"
#include "kernels/combine.h"

namespace bluecomm {

// A set of ranks that operate together. `ranks[i]` is the global rank of member i, and
// `machine_of[i]` is its (possibly simulated) machine, from 0 to machines - 1.
struct Group {
  std::uint64_t id = 0;  // the same on all members, and different for each group
  std::vector<int> ranks;
  std::vector<int> machine_of;
  int me = 0;  // this rank's index in `ranks`
  // The group for operations of whose members it was made. A member removes it before
  // its parent, and may never have added it.
  std::optional<std::uint64_t> parent = std::nullopt;

  int size() const { return static_cast<int>(ranks.size()); }
};

// The index of a member (or machine) and its weight.
using Weight = std::pair<int, double>;

// One call of an operation on this rank. The caller owns the memory, which must stay
// valid until the operation has completed.
struct Call {
  Kind kind = Kind::kBarrier;
  std::string name;
  std::shared_ptr<const Group> group;
  DType dtype = DType::kUInt8;
  std::vector<std::int64_t> shape;  // of the input
  std::span<const std::byte> input;
  // Memory for the result, of its length. It is either the same memory as `input` or
  // does not overlap it. Empty for allgather, alltoall and neighbor_allgather, where
  // only the other ranks know the length.
  std::span<std::byte> output;
  // Memory that the caller gives for the result of those three operations: one span for
  // all rows, or one for the rows of each source, in the order in which they are
  // stacked. If it has another length, the operation fails. The spans do not overlap
  // one another, nor the input, except that allgather's input may be its own rows.
  std::vector<std::span<std::byte>> outputs;
  // Allocates the result if `outputs` is empty. Called once, from Phase::bind, with
  // the number of rows from each member (neighbor_allgather: from each of `sources`) in
  // the order in which they are stacked. Returns exactly `nbytes` bytes that live as
  // long as the operation, or throws.
  std::function<std::span<std::byte>(std::size_t nbytes,
                                     std::span<const std::int64_t> rows)>
      allocate;

  ReduceOp op = ReduceOp::kSum;  // allreduce, reducescatter, reduce
  double prescale = 1.0;         // for these three: factor before ...
  double postscale = 1.0;  // ... and after the reduction (without the 1/n of average)
  int root = 0;            // broadcast, reduce, gather, scatter: member index
  // alltoall, scatter, reducescatter: the number of rows for each member, or empty for
  // equal shares. Adasum:
  // the number of elements of each tensor, or empty if the input is one tensor.
  std::vector<std::int64_t> splits;
  bool local_only = false;  // allreduce inside the machine
  // allreduce: direct, ring or hierarchical, the same on all members. Empty: the
  // thresholds of `Tuning` choose.
  std::optional<Algorithm> algorithm;
  // Neighbor operations: member indices (hierarchical: machine indices), each at most
  // once. neighbor_allgather stacks results in the order of `sources`.
  double self_weight = 1.0;
  std::vector<Weight> sources;
  std::vector<Weight> destinations;

  // Opens when `input` has been written; null if that is the case already.
  std::shared_ptr<Gate> gate;
  // Set if the library of a device carries out the call. The engine then only orders
  // it, and the call has no memory. The kind is not one of unknown length.
  std::shared_ptr<Ticket> ticket;
  // Whether the call exchanges facts about one that the library of a device carries out
  // afterwards. It does not match calls of ranks that pass the values themselves.
  bool precedes_ticket = false;
  // Whether it is a later call of an operation that takes several. All members of the
  // first one make it, also those that have joined.
  bool follows = false;
  // Whether the call raises the late failures of earlier ones. If not, the next call
  // that does raises them. The calls of a group are alike in this. If they raise none,
  // they leave none, because the caller learns in another way what has failed on other
  // ranks.
  bool raises_late = true;

  std::chrono::steady_clock::time_point deadline;
};

}  // namespace bluecomm
