#pragma once

#include <cstdint>

#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// Completes a phase whose gathers are rows to be stacked along dimension 0, in order,
// and whose lengths only the senders know: its `bind` takes memory for all rows from
// the request and cuts it up. `own_rows` is what each gather from this rank's own
// memory brings (there is at most one).
void bind_stacked(Phase& phase, const Request& request, std::int64_t own_rows);

}  // namespace bluecomm
