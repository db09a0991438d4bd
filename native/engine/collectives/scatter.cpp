#include <string>

#include "engine/collectives/collectives.h"
#include "engine/collectives/stack.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: the root sends each member its rows, which the member answers with an
// empty message, as in gather.
Plan plan_scatter(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_root(call);
  check_stackable(call, 1);
  check_input(call);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  if (group.me != call.root) {
    if (call.shape.front() != 0) {
      reject(call, "expected no input on a rank other than the root, got " +
                       std::to_string(call.shape.front()) + " rows");
    }
    const int root = group.ranks[call.root];
    phase.sends.push_back({.peer = root, .slot = 0, .bytes = {}});
    phase.gathers.push_back(copy_from(root, 0, {}));
    bind_stacked(phase, call, 0);
    return plan;
  }
  check_splits(call);
  const std::size_t row = row_nbytes(call);
  std::span<const std::byte> rest = call.input;
  for (int member = 0; member < group.size(); ++member) {
    const std::size_t length = static_cast<std::size_t>(call.splits[member]) * row;
    const std::span<const std::byte> block = rest.first(length);
    rest = rest.subspan(length);
    if (member == group.me) continue;
    phase.sends.push_back({.peer = group.ranks[member],
                           .slot = 0,
                           .bytes = block,
                           .first_dim = call.splits[member]});
    phase.gathers.push_back(copy_from(group.ranks[member], 0, {}));
  }
  return plan;
}

}  // namespace bluecomm
