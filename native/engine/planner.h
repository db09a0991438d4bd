#pragma once

#include "engine/collectives/tuning.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// The plan of `request` on this rank. All ranks choose the same algorithm, because the
// choice depends only on what the fingerprint covers (kind, group, dtype, count) and on
// `tuning`, which is the same on all ranks.
// Throws std::invalid_argument for a request that makes no sense.
Plan make_plan(const Request& request, const Tuning& tuning = {});

}  // namespace bluecomm
