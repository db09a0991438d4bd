#include "engine/planner.h"

#include "engine/collectives/collectives.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

using Planner = Plan (*)(const Request&, const Tuning&);

Planner planner_of(Kind kind) {
  switch (kind) {
    case Kind::kAllreduce:
      return plan_allreduce;
    case Kind::kBroadcast:
      return plan_broadcast;
    case Kind::kAllgather:
      return plan_allgather;
    case Kind::kReducescatter:
      return plan_reducescatter;
    case Kind::kAlltoall:
      return plan_alltoall;
    case Kind::kBarrier:
      return plan_barrier;
    case Kind::kNeighborAllgather:
      return plan_neighbor_allgather;
    case Kind::kNeighborAllreduce:
      return plan_neighbor_allreduce;
    case Kind::kHierarchicalNeighborAllreduce:
      return plan_hierarchical_neighbor_allreduce;
    case Kind::kPairGossip:
      return plan_pair_gossip;
  }
  return nullptr;
}

}  // namespace

Plan make_plan(const Request& request, const Tuning& tuning) {
  check_group(request);
  const Planner planner = planner_of(request.kind);
  if (planner == nullptr) refuse(request, "no such kind of operation");
  return planner(request, tuning);
}

}  // namespace bluecomm
