#include "engine/planner.h"

#include "engine/collectives/validate.h"

namespace bluecomm {

Plan make_plan(const Call& call, const Tuning& tuning) {
  check_group(call);
  if (!is_kind(call.kind)) {
    reject(call, "kind " + std::to_string(static_cast<int>(call.kind)) +
                     " is not an operation");
  }
  return kind_info(call.kind).plan(call, tuning);
}

}  // namespace bluecomm
