#include "engine/collectives/collectives.h"
#include "engine/collectives/stack.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member sends its rows to all others, which learn the numbers of rows
// from the headers.
Plan plan_allgather(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_stackable(call, group.ranks.size());
  check_input(call);
  const std::int64_t rows = call.shape.front();

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.me) {
      phase.gathers.push_back(copy_own(call.input, {}));
      continue;
    }
    const int peer = group.ranks[member];
    phase.sends.push_back(
        {.peer = peer, .slot = 0, .bytes = call.input, .first_dim = rows});
    phase.gathers.push_back(copy_from(peer, 0, {}));
  }
  bind_stacked(phase, call, rows);
  return plan;
}

// One phase: each member sends its rows to its destinations. Results are in the order
// of `sources`.
Plan plan_neighbor_allgather(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_stackable(call, call.sources.size());
  check_input(call);
  check_neighbors(call, call.sources, "source", "member", group.size(), group.me);
  check_neighbors(call, call.destinations, "destination", "member", group.size(),
                  group.me);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (const auto& [member, weight] : call.destinations) {
    phase.sends.push_back({.peer = group.ranks[member],
                           .slot = 0,
                           .bytes = call.input,
                           .first_dim = call.shape.front()});
  }
  for (const auto& [member, weight] : call.sources) {
    phase.gathers.push_back(copy_from(group.ranks[member], 0, {}));
  }
  bind_stacked(phase, call, 0);
  return plan;
}

}  // namespace bluecomm
