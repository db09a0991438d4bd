// The collectives: each a pure function from a request to this rank's plan. All throw
// std::invalid_argument for a request that makes no sense. One file each; kinds.cpp
// lists them.
#pragma once

#include "engine/collectives/tuning.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// output = postscale * op over all members of (prescale * input), the same bits on all;
// over the members on this machine when `local_only`.
Plan plan_allreduce(const Request& request, const Tuning& tuning);

// output = input of member `root`.
Plan plan_broadcast(const Request& request, const Tuning& tuning);

// result = inputs of all members, stacked along dimension 0.
Plan plan_allgather(const Request& request, const Tuning& tuning);

// output = this member's rows of what allreduce would give. The first dimension is
// split as evenly as possible: the first rows % n members get one row more.
Plan plan_reducescatter(const Request& request, const Tuning& tuning);

// result = the rows that each member has for this one, stacked in member order.
Plan plan_alltoall(const Request& request, const Tuning& tuning);

// Ends when all members have started it.
Plan plan_barrier(const Request& request, const Tuning& tuning);

// result = inputs of `sources`, stacked along dimension 0 in the order given.
Plan plan_neighbor_allgather(const Request& request, const Tuning& tuning);

// output = self_weight * input + sum over sources j of
//          (weight of j here) * (weight of this rank in j's destinations) * input of j.
Plan plan_neighbor_allreduce(const Request& request, const Tuning& tuning);

// As neighbor_allreduce between machines, for the average of each machine's inputs; all
// members of a machine get the same bits.
Plan plan_hierarchical_neighbor_allreduce(const Request& request, const Tuning& tuning);

// As neighbor_allreduce with one member that is source and destination.
Plan plan_pair_gossip(const Request& request, const Tuning& tuning);

}  // namespace bluecomm
