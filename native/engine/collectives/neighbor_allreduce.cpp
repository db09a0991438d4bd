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
Plan plan_neighbor_allreduce(const Request& request, const Tuning&) {
  const Group& group = *request.group;
  check_input(request);
  check_output(request, request.input);
  check_neighbors(request, request.sources, "source", "member", group.size(), group.me);
  check_neighbors(request, request.destinations, "destination", "member", group.size(),
                  group.me);
  check_weights(request);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (const auto& [member, weight] : request.destinations) {
    phase.sends.push_back({.peer = group.ranks[member],
                           .slot = 0,
                           .bytes = request.input,
                           .scale = weight});
  }
  std::vector<Weight> values = request.sources;
  values.emplace_back(group.me, request.self_weight);
  std::sort(values.begin(), values.end());

  Gather gather;
  gather.dst = request.output;
  gather.combine = Combine::kWeighted;
  gather.overwrites_sent =
      request.output.data() == request.input.data() && !phase.sends.empty();
  for (const auto& [member, weight] : values) {
    gather.sources.push_back(member == group.me
                                 ? own_source(request.input, weight)
                                 : source_at(group.ranks[member], 0, weight));
  }
  phase.gathers.push_back(std::move(gather));
  return plan;
}

Plan plan_pair_gossip(const Request& request, const Tuning& tuning) {
  if (request.sources.size() != 1 || request.destinations.size() != 1 ||
      request.sources[0].first != request.destinations[0].first) {
    refuse(request,
           "expected one member as the only source and the only destination, got " +
               std::to_string(request.sources.size()) + " sources and " +
               std::to_string(request.destinations.size()) + " destinations");
  }
  return plan_neighbor_allreduce(request, tuning);
}

}  // namespace bluecomm
