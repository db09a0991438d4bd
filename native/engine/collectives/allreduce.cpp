// Chooses the algorithm of an allreduce and adds its phases. Called by make_plan() on
// the thread that submits the operation. The choice depends only on values that all
// ranks share, because they must all choose the same algorithm.
#include "engine/collectives/allreduce.h"

#include <algorithm>
#include <bit>
#include <functional>
#include <stdexcept>
#include <vector>

#include "engine/collectives/adasum.h"
#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/doubling.h"
#include "engine/collectives/flat.h"
#include "engine/collectives/hierarchical.h"
#include "engine/collectives/ring.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

Algorithm choose_allreduce(std::size_t nbytes, int members, Reach reach,
                           const Tuning& tuning) {
  if (members <= tuning.flat_members &&
      (nbytes <= tuning.flat_bytes ||
       (reach == Reach::kMemory &&
        nbytes <= tuning.flat_memory_bytes / static_cast<std::size_t>(members)))) {
    return Algorithm::kFlat;
  }
  if (nbytes <= tuning.doubling_bytes) return Algorithm::kDoubling;
  // With two members, ring and direct send the same messages.
  const bool has_long_slices = reach == Reach::kNetwork && members > 2 &&
                               nbytes / members >= tuning.ring_slice_bytes;
  if (members > tuning.direct_members || has_long_slices) return Algorithm::kRing;
  const bool is_long = reach == Reach::kMemory && nbytes > tuning.block_bytes;
  return is_long ? Algorithm::kBlocks : Algorithm::kDirect;
}

void add_allreduce(Algorithm algorithm, Plan& plan, std::size_t first, const Team& team,
                   const Reduction& reduction, const Buffers& buffers) {
  switch (algorithm) {
    case Algorithm::kFlat:
      return add_flat_allreduce(plan, first, team, reduction, buffers);
    case Algorithm::kDoubling:
      return add_doubling_allreduce(plan, first, team, reduction, buffers);
    case Algorithm::kDirect:
      return add_direct_allreduce(plan, first, team, reduction, buffers);
    case Algorithm::kRing:
      return add_ring_allreduce(plan, first, team, reduction, buffers);
    case Algorithm::kHierarchical:
    case Algorithm::kTree:
    case Algorithm::kScatter:
    case Algorithm::kBlocks:
    case Algorithm::kTicket:
      break;
  }
  throw std::logic_error("add_allreduce() does not implement this algorithm");
}

std::size_t allreduce_phases(Algorithm algorithm, int members) {
  const auto n = static_cast<unsigned>(members);
  switch (algorithm) {
    case Algorithm::kFlat:
      return 1;
    case Algorithm::kDoubling:
      // One phase for each bit, and two for folding and unfolding.
      return std::bit_width(n) - 1 + (std::has_single_bit(n) ? 0 : 2);
    case Algorithm::kDirect:
      return 2;
    case Algorithm::kRing:
      return 2 * (n - 1);
    case Algorithm::kHierarchical:
    case Algorithm::kTree:
    case Algorithm::kScatter:
    case Algorithm::kBlocks:
    case Algorithm::kTicket:
      break;
  }
  throw std::logic_error("add_allreduce() does not implement this algorithm");
}

bool may_overlap(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing;
}

bool can_be_chosen(Algorithm algorithm) {
  return algorithm == Algorithm::kDirect || algorithm == Algorithm::kRing ||
         algorithm == Algorithm::kHierarchical;
}

namespace {

// Adds the work of a team of one member, which scales or copies its value if needed.
void add_own_result(Plan& plan, const Reduction& reduction, const Buffers& buffers) {
  const bool is_scaled = reduction.prescale != 1.0 || reduction.postscale != 1.0;
  if (buffers.in_place() && !is_scaled) return;
  phase_at(plan, 0).gathers.push_back(reduction.complete(
      buffers.output, {own_source(buffers.input, reduction.prescale)}));
}

bool is_one_machine(const Group& group) {
  const std::vector<int>& machines = group.machine_of;
  return std::adjacent_find(machines.begin(), machines.end(), std::not_equal_to<>()) ==
         machines.end();
}

Reach reach_of(const Call& call) {
  return call.local_only || is_one_machine(*call.group) ? Reach::kMemory
                                                        : Reach::kNetwork;
}

// Rejects an algorithm that the caller has chosen and that does not fit the call.
void check_algorithm(const Call& call) {
  if (!call.algorithm) return;
  if (!can_be_chosen(*call.algorithm)) {
    reject(call, "expected algorithm direct, ring or hierarchical");
  }
  if (call.op == ReduceOp::kAdasum) {
    reject(call, "adasum has an algorithm of its own; leave algorithm out");
  }
  if (*call.algorithm == Algorithm::kHierarchical &&
      (call.local_only || !Machines(*call.group).is_hierarchy())) {
    reject(call,
           "algorithm hierarchical needs several machines, of which one has several "
           "of the ranks; use direct or ring");
  }
}

Algorithm choose_for(const Call& call, int members, const Tuning& tuning) {
  if (call.algorithm) return *call.algorithm;
  const std::size_t nbytes = call.input.size();
  if (reach_of(call) == Reach::kMemory) {
    return choose_allreduce(nbytes, members, Reach::kMemory, tuning);
  }
  if (nbytes > tuning.doubling_bytes && Machines(*call.group).is_hierarchy()) {
    return Algorithm::kHierarchical;
  }
  return choose_allreduce(nbytes, members, Reach::kNetwork, tuning);
}

}  // namespace

Plan plan_allreduce(const Call& call, const Tuning& tuning) {
  check_input(call);
  check_output(call, call.input);
  check_reduction(call);
  check_algorithm(call);
  if (call.op == ReduceOp::kAdasum) check_adasum(call);
  const Group& group = *call.group;
  const Team team = call.local_only ? team_of(group, Machines(group).local_members())
                                    : team_of(group);
  const Reduction reduction = reduction_of(call, team.size());
  Buffers buffers{call.input, call.output};
  buffers.past_caches =
      !buffers.in_place() && buffers.output.size() >= tuning.past_caches_bytes;

  Plan plan;
  if (team.size() == 1) {
    add_own_result(plan, reduction, buffers);
    return plan;
  }
  if (call.op == ReduceOp::kAdasum) {
    plan.algorithm = Algorithm::kDirect;
    add_adasum_allreduce(plan, team, call);
    return plan;
  }
  plan.algorithm = choose_for(call, team.size(), tuning);
  if (plan.algorithm == Algorithm::kHierarchical) {
    add_hierarchical_allreduce(plan, 0, group, reduction, buffers, tuning);
  } else if (plan.algorithm == Algorithm::kBlocks) {
    add_block_allreduce(plan, team, reduction, buffers, tuning.block_bytes);
  } else {
    add_allreduce(plan.algorithm, plan, 0, team, reduction, buffers);
    if (reach_of(call) == Reach::kNetwork && may_overlap(plan.algorithm)) {
      overlap_phases(plan, 0);
    }
  }
  return plan;
}

}  // namespace bluecomm
