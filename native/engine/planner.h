#pragma once

#include "engine/call.h"
#include "engine/collectives/tuning.h"
#include "engine/plan.h"

namespace bluecomm {

// Returns the plan of `call` on this rank. All ranks choose the same algorithm,
// because the choice depends only on values that the fingerprint covers (kind, group,
// dtype, count) and on `tuning`, which is the same on all ranks. Throws
// std::invalid_argument for an invalid call.
Plan make_plan(const Call& call, const Tuning& tuning = {});

}  // namespace bluecomm
