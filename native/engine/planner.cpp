#include "engine/planner.h"

#include "engine/collectives/validate.h"

namespace bluecomm {

Plan make_plan(const Request& request, const Tuning& tuning) {
  check_group(request);
  if (!is_kind(request.kind)) {
    refuse(request, "kind " + std::to_string(static_cast<int>(request.kind)) +
                        " is not an operation");
  }
  return kind_info(request.kind).plan(request, tuning);
}

}  // namespace bluecomm
