#include "engine/planner.h"

#include <utility>

#include "engine/collectives/collectives.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

// Returns whether a call ends only once all members have called alike.
bool needs_all_members(Kind kind) {
  return kind != Kind::kGather && kind != Kind::kScatter &&
         !kind_info(kind).spares_group;
}

// Adds phases after which all members know that all have come this far: the others tell
// the first member, which answers. Otherwise a call that only some members find
// mismatched would end well on the others, which would start the call with the ticket.
void add_agreement(Plan& plan, const Group& group) {
  Phase telling;
  Phase answering;
  if (group.me != 0) {
    telling.sends.push_back({.peer = group.ranks.front(), .slot = 0, .bytes = {}});
    answering.gathers.push_back(copy_from(group.ranks.front(), 0, {}));
  } else {
    for (std::size_t member = 1; member < group.ranks.size(); ++member) {
      telling.gathers.push_back(copy_from(group.ranks[member], 0, {}));
      answering.sends.push_back({.peer = group.ranks[member], .slot = 0, .bytes = {}});
    }
  }
  plan.phases.push_back(std::move(telling));
  plan.phases.push_back(std::move(answering));
}

}  // namespace

Plan make_plan(const Call& call, const Tuning& tuning) {
  check_group(call);
  if (!is_kind(call.kind)) {
    reject(call, "kind " + std::to_string(static_cast<int>(call.kind)) +
                     " is not an operation");
  }
  if (call.ticket) return plan_ticket(call);
  Plan plan = kind_info(call.kind).plan(call, tuning);
  if (call.precedes_ticket) {
    plan.algorithm = Algorithm::kTicket;
    if (!needs_all_members(call.kind)) add_agreement(plan, *call.group);
  }
  return plan;
}

}  // namespace bluecomm
