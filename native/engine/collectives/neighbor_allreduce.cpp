#include <algorithm>
#include <string>
#include <utility>

#include "engine/collectives/collectives.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member sends its tensor to each destination, with the weight in the
// header. The received values and the member's own are summed in ascending member
// order.
Plan plan_neighbor_allreduce(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_input(call);
  check_output(call, call.input);
  check_neighbors(call, call.sources, "source", "member", group.size(), group.me);
  check_neighbors(call, call.destinations, "destination", "member", group.size(),
                  group.me);
  check_weights(call);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (const auto& [member, weight] : call.destinations) {
    phase.sends.push_back(
        {.peer = group.ranks[member], .slot = 0, .bytes = call.input, .scale = weight});
  }
  std::vector<Weight> values = call.sources;
  values.emplace_back(group.me, call.self_weight);
  std::sort(values.begin(), values.end());

  Gather gather;
  gather.dst = call.output;
  gather.combine = Combine::kWeighted;
  gather.overwrites_sent =
      call.output.data() == call.input.data() && !phase.sends.empty();
  for (const auto& [member, weight] : values) {
    gather.sources.push_back(member == group.me
                                 ? own_source(call.input, weight)
                                 : source_at(group.ranks[member], 0, weight));
  }
  phase.gathers.push_back(std::move(gather));
  return plan;
}

Plan plan_pair_gossip(const Call& call, const Tuning& tuning) {
  if (call.sources.size() != 1 || call.destinations.size() != 1 ||
      call.sources[0].first != call.destinations[0].first) {
    reject(call,
           "expected one member as the only source and the only destination, got " +
               std::to_string(call.sources.size()) + " sources and " +
               std::to_string(call.destinations.size()) + " destinations");
  }
  return plan_neighbor_allreduce(call, tuning);
}

}  // namespace bluecomm
