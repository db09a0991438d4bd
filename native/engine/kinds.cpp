#include "engine/kinds.h"

#include <array>

#include "engine/collectives/collectives.h"

namespace bluecomm {
namespace {

constexpr std::array<KindInfo, kKindCount> kTable{{
    {.kind = Kind::kAllreduce,
     .name = "allreduce",
     .plan = plan_allreduce,
     .shape = ShapeRule::kWhole,
     .is_reduction = true,
     .has_neutral = true},
    {.kind = Kind::kBroadcast,
     .name = "broadcast",
     .plan = plan_broadcast,
     .shape = ShapeRule::kWhole,
     .has_root = true},
    {.kind = Kind::kAllgather,
     .name = "allgather",
     .plan = plan_allgather,
     .shape = ShapeRule::kAllButFirst},
    {.kind = Kind::kReducescatter,
     .name = "reducescatter",
     .plan = plan_reducescatter,
     .shape = ShapeRule::kWhole,
     .is_reduction = true,
     .has_neutral = true},
    {.kind = Kind::kAlltoall,
     .name = "alltoall",
     .plan = plan_alltoall,
     .shape = ShapeRule::kAllButFirst},
    {.kind = Kind::kBarrier,
     .name = "barrier",
     .plan = plan_barrier,
     .shape = ShapeRule::kNoTensor,
     .has_neutral = true},
    {.kind = Kind::kNeighborAllgather,
     .name = "neighbor_allgather",
     .plan = plan_neighbor_allgather,
     .shape = ShapeRule::kAllButFirst,
     .spares_group = true},
    {.kind = Kind::kNeighborAllreduce,
     .name = "neighbor_allreduce",
     .plan = plan_neighbor_allreduce,
     .shape = ShapeRule::kWhole,
     .spares_group = true,
     .drops_lost = true},
    {.kind = Kind::kHierarchicalNeighborAllreduce,
     .name = "hierarchical_neighbor_allreduce",
     .plan = plan_hierarchical_neighbor_allreduce,
     .shape = ShapeRule::kWhole},
    {.kind = Kind::kPairGossip,
     .name = "pair_gossip",
     .plan = plan_pair_gossip,
     .shape = ShapeRule::kWhole,
     .is_pairwise = true,
     .spares_group = true,
     .drops_lost = true},
    {.kind = Kind::kReduce,
     .name = "reduce",
     .plan = plan_reduce,
     .shape = ShapeRule::kWhole,
     .is_reduction = true,
     .has_root = true},
    {.kind = Kind::kGather,
     .name = "gather",
     .plan = plan_gather,
     .shape = ShapeRule::kAllButFirst,
     .has_root = true},
    {.kind = Kind::kScatter,
     .name = "scatter",
     .plan = plan_scatter,
     .shape = ShapeRule::kNoTensor,
     .has_root = true},
}};

constexpr bool is_complete_and_in_order() {
  for (std::size_t i = 0; i < kTable.size(); ++i) {
    const KindInfo& row = kTable[i];
    if (row.kind != static_cast<Kind>(i) || row.name.empty()) return false;
  }
  return true;
}
static_assert(is_complete_and_in_order(), "row i must describe the i-th Kind");

}  // namespace

std::span<const KindInfo, kKindCount> all_kinds() noexcept { return kTable; }

const KindInfo& kind_info(Kind kind) noexcept {
  return kTable[static_cast<std::size_t>(kind)];
}

std::string_view kind_name(Kind kind) noexcept {
  return is_kind(kind) ? kind_info(kind).name : "unknown operation";
}

std::optional<Kind> kind_from_name(std::string_view name) noexcept {
  for (const KindInfo& row : kTable) {
    if (row.name == name) return row.kind;
  }
  return std::nullopt;
}

}  // namespace bluecomm
