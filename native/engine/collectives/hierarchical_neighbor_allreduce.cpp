#include <algorithm>
#include <string>
#include <utility>

#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

// Adds phase 1: each owner of a piece exchanges it with the owners on the neighbor
// machines. All averages are summed in ascending order of machines.
void add_exchange(Plan& plan, const Call& call, const Machines& machines,
                  std::span<const std::byte> average) {
  const Group& group = *call.group;
  std::vector<Weight> values = call.sources;
  values.emplace_back(machines.mine, call.self_weight);
  std::sort(values.begin(), values.end());

  Phase& phase = phase_at(plan, 1);
  std::uint32_t slot = 0;
  for (const Piece& piece : cut_into_pieces(machines, average.size())) {
    const std::uint32_t number = slot++;
    if (piece.owners[machines.mine] != group.me) continue;
    const std::span<const std::byte> own = piece.range.of(average);
    for (const auto& [machine, weight] : call.destinations) {
      phase.sends.push_back({.peer = group.ranks[piece.owners[machine]],
                             .slot = number,
                             .bytes = own,
                             .scale = weight});
    }
    Gather gather;
    gather.dst = piece.range.of(call.output);
    gather.combine = Combine::kWeighted;
    gather.overwrites_sent =
        gather.dst.data() == own.data() && !call.destinations.empty();
    for (const auto& [machine, weight] : values) {
      gather.sources.push_back(
          machine == machines.mine
              ? own_source(own, weight)
              : source_at(group.ranks[piece.owners[machine]], number, weight));
    }
    phase.gathers.push_back(std::move(gather));
  }
}

}  // namespace

// Three phases: each member averages one slice inside the machine; all members exchange
// their slices between the machines; the members of a machine copy one another's
// slices. All ranks have three phases, even if a machine has one member and only the
// second phase has messages.
Plan plan_hierarchical_neighbor_allreduce(const Call& call, const Tuning&) {
  const Machines machines(*call.group);
  check_input(call);
  check_output(call, call.input);
  check_neighbors(call, call.sources, "source", "machine", machines.size(),
                  machines.mine);
  check_neighbors(call, call.destinations, "destination", "machine", machines.size(),
                  machines.mine);
  if (!is_floating(call.dtype)) {
    reject(call, "expected a floating dtype for an average, got " +
                     std::string(dtype_name(call.dtype)) +
                     "; convert the tensor first");
  }

  const Team local = team_of(*call.group, machines.local_members());
  const std::vector<Range> slices = cut(call.input.size(), local.size());
  Plan plan;
  plan.algorithm = Algorithm::kHierarchical;
  std::span<const std::byte> average = call.input;
  if (local.size() > 1) {
    const Reduction reduction{ReduceOp::kSum, 1.0, 1.0 / local.size()};
    add_direct_reduce_scatter(plan, 0, local, reduction, call.input,
                              slices[local.me].of(call.output), slices);
    average = call.output;
  }
  add_exchange(plan, call, machines, average);
  add_direct_allgather(plan, 2, local, call.output, slices);
  return plan;
}

}  // namespace bluecomm
