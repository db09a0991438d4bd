#pragma once

#include <cstdint>

#include "engine/call.h"
#include "engine/plan.h"

namespace bluecomm {

// Sets the `bind` of a phase whose gathers receive rows that are stacked along
// dimension 0, in order, and whose lengths only the senders know: it takes the call's
// outputs, or allocates memory for all rows, and divides it among the gathers.
// `own_rows` is the number of rows of the gather from this rank's own memory, if there
// is one.
void bind_stacked(Phase& phase, const Call& call, std::int64_t own_rows);

}  // namespace bluecomm
