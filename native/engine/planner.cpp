#include "engine/planner.h"

#include "engine/collectives/collectives.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

Plan make_plan(const Call& call, const Tuning& tuning) {
  check_group(call);
  if (!is_kind(call.kind)) {
    reject(call, "kind " + std::to_string(static_cast<int>(call.kind)) +
                     " is not an operation");
  }
  if (call.ticket) return plan_ticket(call);
  Plan plan = kind_info(call.kind).plan(call, tuning);
  if (call.precedes_ticket) plan.algorithm = Algorithm::kTicket;
  return plan;
}

}  // namespace bluecomm
