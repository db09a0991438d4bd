#include "engine/request.h"

namespace bluecomm {

std::string_view kind_name(Kind kind) noexcept {
  switch (kind) {
    case Kind::kAllreduce:
      return "allreduce";
    case Kind::kBroadcast:
      return "broadcast";
    case Kind::kAllgather:
      return "allgather";
    case Kind::kReducescatter:
      return "reducescatter";
    case Kind::kAlltoall:
      return "alltoall";
    case Kind::kBarrier:
      return "barrier";
    case Kind::kNeighborAllgather:
      return "neighbor_allgather";
    case Kind::kNeighborAllreduce:
      return "neighbor_allreduce";
    case Kind::kHierarchicalNeighborAllreduce:
      return "hierarchical_neighbor_allreduce";
    case Kind::kPairGossip:
      return "pair_gossip";
  }
  return "unknown operation";
}

}  // namespace bluecomm
