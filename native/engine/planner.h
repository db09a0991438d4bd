#pragma once

#include "engine/collectives/tuning.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// Returns the plan of `request` on this rank. All ranks choose the same algorithm,
// because the choice depends only on values that the fingerprint covers (kind, group,
// dtype, count) and on `tuning`, which is the same on all ranks. Throws
// std::invalid_argument for an invalid request.
Plan make_plan(const Request& request, const Tuning& tuning = {});

}  // namespace bluecomm
