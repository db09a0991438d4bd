#include "engine/collectives/collectives.h"
#include "engine/collectives/stack.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member sends its rows to all others, which learn the numbers of rows
// from the headers.
Plan plan_allgather(const Request& request, const Tuning&) {
  check_stackable(request);
  check_input(request);
  const Group& group = *request.group;
  const std::int64_t rows = request.shape.front();

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.me) {
      phase.gathers.push_back(copy_own(request.input, {}));
      continue;
    }
    const int peer = group.ranks[member];
    phase.sends.push_back(
        {.peer = peer, .slot = 0, .bytes = request.input, .first_dim = rows});
    phase.gathers.push_back(copy_from(peer, 0, {}));
  }
  bind_stacked(phase, request, rows);
  return plan;
}

// One phase: each member sends its rows to its destinations. Results are in the order
// of `sources`.
Plan plan_neighbor_allgather(const Request& request, const Tuning&) {
  const Group& group = *request.group;
  check_stackable(request);
  check_input(request);
  check_neighbors(request, request.sources, "source", "member", group.size(), group.me);
  check_neighbors(request, request.destinations, "destination", "member", group.size(),
                  group.me);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  for (const auto& [member, weight] : request.destinations) {
    phase.sends.push_back({.peer = group.ranks[member],
                           .slot = 0,
                           .bytes = request.input,
                           .first_dim = request.shape.front()});
  }
  for (const auto& [member, weight] : request.sources) {
    phase.gathers.push_back(copy_from(group.ranks[member], 0, {}));
  }
  bind_stacked(phase, request, 0);
  return plan;
}

}  // namespace bluecomm
