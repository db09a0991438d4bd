// The collectives: each is a pure function from a call to this rank's plan, in a
// file of its own. All throw std::invalid_argument for an invalid call. The table in
// kinds.cpp lists them.
#pragma once

#include "engine/call.h"
#include "engine/collectives/tuning.h"
#include "engine/plan.h"

namespace bluecomm {

// Orders a call that the library of a device carries out. The kind of `call` is that of
// the operation; it has a ticket and no memory.
Plan plan_ticket(const Call& call);

// output = postscale * op over all members of (prescale * input), with the same bits on
// all members. If `local_only`, only the members on this machine take part.
Plan plan_allreduce(const Call& call, const Tuning& tuning);

// output = input of member `root`.
Plan plan_broadcast(const Call& call, const Tuning& tuning);

// result = the inputs of all members, stacked along dimension 0.
Plan plan_allgather(const Call& call, const Tuning& tuning);

// output = the result that allreduce would have, on member `root` only. The other
// members have no output.
Plan plan_reduce(const Call& call, const Tuning& tuning);

// result = the inputs of all members, stacked along dimension 0, on member `root` only.
// The other members have no result.
Plan plan_gather(const Call& call, const Tuning& tuning);

// result = the rows that member `root` has for this member, as alltoall divides them.
// The root has no result, and the others no input.
Plan plan_scatter(const Call& call, const Tuning& tuning);

// output = this member's rows of the result that allreduce would have. Without splits,
// the first dimension is split as evenly as possible: the first rows % n members get
// one additional row.
Plan plan_reducescatter(const Call& call, const Tuning& tuning);

// result = the rows that each member sends to this one, stacked in member order.
Plan plan_alltoall(const Call& call, const Tuning& tuning);

// Completes after all members have started it.
Plan plan_barrier(const Call& call, const Tuning& tuning);

// result = the inputs of `sources`, stacked along dimension 0 in the given order.
Plan plan_neighbor_allgather(const Call& call, const Tuning& tuning);

// output = self_weight * input + sum over sources j of
//          (weight of j here) * (weight of this rank in j's destinations) * input of j.
Plan plan_neighbor_allreduce(const Call& call, const Tuning& tuning);

// Runs neighbor_allreduce between machines on the average of each machine's inputs. All
// members of a machine get the same bits.
Plan plan_hierarchical_neighbor_allreduce(const Call& call, const Tuning& tuning);

// Runs neighbor_allreduce with one member, which is both source and destination.
Plan plan_pair_gossip(const Call& call, const Tuning& tuning);

}  // namespace bluecomm
