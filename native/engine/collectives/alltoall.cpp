#include <string>

#include "engine/collectives/collectives.h"
#include "engine/collectives/stack.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

// Returns the number of rows for each member: the given splits, or equal shares.
std::vector<std::int64_t> splits_of(const Call& call) {
  const std::int64_t rows = call.shape.front();
  const int members = call.group->size();
  if (call.splits.empty()) {
    if (rows % members != 0) {
      reject(call, "without splits, expected a first dimension that " +
                       std::to_string(members) + " members can share equally, got " +
                       std::to_string(rows));
    }
    return std::vector<std::int64_t>(static_cast<std::size_t>(members), rows / members);
  }
  check_splits(call);
  return call.splits;
}

}  // namespace

// One phase: member j receives the j-th block of rows from each member.
Plan plan_alltoall(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  check_stackable(call, group.ranks.size());
  check_input(call);
  const std::vector<std::int64_t> splits = splits_of(call);
  const std::size_t row = row_nbytes(call);

  Plan plan;
  Phase& phase = phase_at(plan, 0);
  std::span<const std::byte> rest = call.input;
  for (int member = 0; member < group.size(); ++member) {
    const std::size_t length = static_cast<std::size_t>(splits[member]) * row;
    const std::span<const std::byte> block = rest.first(length);
    rest = rest.subspan(length);
    if (member == group.me) {
      phase.gathers.push_back(copy_own(block, {}));
      continue;
    }
    const int peer = group.ranks[member];
    phase.sends.push_back(
        {.peer = peer, .slot = 0, .bytes = block, .first_dim = splits[member]});
    phase.gathers.push_back(copy_from(peer, 0, {}));
  }
  bind_stacked(phase, call, splits[group.me]);
  return plan;
}

}  // namespace bluecomm
