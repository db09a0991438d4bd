#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>

// The engine's operations: one row for each in the table of kinds.cpp.
//
// To add an operation, write its planner (engine/collectives/), append an enumerator to
// Kind, and append a row to the table; the code does not compile until both agree.

namespace bluecomm {

struct Plan;
struct Call;
struct Tuning;

// The kinds of operations. Sent in envelopes, so all ranks must run the same list.
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
  kReduce,
  kGather,
  kScatter,
  kCount,  // the number of kinds, not a kind
};
inline constexpr std::size_t kKindCount = static_cast<std::size_t>(Kind::kCount);

// The part of the tensor's shape on which all ranks must agree.
enum class ShapeRule : std::uint8_t {
  kNoTensor,     // the operation has no tensor, so dtype and shape do not matter
  kWhole,        // the whole shape
  kAllButFirst,  // all dimensions but the first, along which the inputs are stacked
};

// One row of the table: everything that the engine must know about a kind, apart from
// its plan.
struct KindInfo {
  Kind kind;
  std::string_view name;  // the operation's public name, such as "neighbor_allreduce"
  Plan (*plan)(const Call&, const Tuning&);
  ShapeRule shape;
  bool is_reduction = false;  // op, prescale and postscale must agree
  bool has_root = false;      // the root must agree
  bool is_pairwise = false;   // calls are counted for each pair of ranks, not per group
  // A failed call sends its ABORT only to the ranks that it exchanges messages with,
  // instead of to the whole group.
  bool spares_group = false;
  // A rank that has joined can take part, with the neutral value of the reduction.
  bool has_neutral = false;
  // In a job that survives losses, the call goes on without a lost peer, whose weight
  // the caller's own values take. The plan has one phase, and weighted gathers with a
  // source of their own.
  bool drops_lost = false;
};

// All kinds, in the order of Kind.
std::span<const KindInfo, kKindCount> all_kinds() noexcept;

// Returns the row of `kind`, which must be valid (is_kind()).
const KindInfo& kind_info(Kind kind) noexcept;

// Returns whether `kind`, which may come from a peer, is one of the enumerators.
constexpr bool is_kind(Kind kind) noexcept { return kind < Kind::kCount; }

// Returns the operation's public name, or "unknown operation" for an invalid `kind`.
std::string_view kind_name(Kind kind) noexcept;

std::optional<Kind> kind_from_name(std::string_view name) noexcept;

}  // namespace bluecomm
