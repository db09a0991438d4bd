#include "engine/collectives/collectives.h"
#include "engine/collectives/stack.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member sends its rows to the root, which answers with an empty
// message. Without the answer, a member that wrongly considers itself the root would
// wait until its deadline, and a member of short rows would not notice.
Plan plan_gather(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_root(call);
  check_stackable(call, group.ranks.size());
  check_input(call);
  const std::int64_t rows = call.shape.front();
  const int root = group.ranks[call.root];

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  if (group.me != call.root) {
    phase.sends.push_back(
        {.peer = root, .slot = 0, .bytes = call.input, .first_dim = rows});
    phase.gathers.push_back(copy_from(root, 0, {}));
    return plan;
  }
  for (int member = 0; member < group.size(); ++member) {
    if (member == group.me) {
      phase.gathers.push_back(copy_own(call.input, {}));
      continue;
    }
    phase.gathers.push_back(copy_from(group.ranks[member], 0, {}));
    phase.sends.push_back({.peer = group.ranks[member], .slot = 0, .bytes = {}});
  }
  bind_stacked(phase, call, rows);
  return plan;
}

}  // namespace bluecomm
