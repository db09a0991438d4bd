#pragma once

#include <cstddef>

#include "engine/collectives/team.h"

namespace bluecomm {

// Adds an allreduce in one phase: each member sends its whole tensor to all others and
// reduces all tensors in ascending order.
void add_flat_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
