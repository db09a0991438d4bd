#pragma once

#include <cstddef>

#include "engine/collectives/team.h"

namespace bluecomm {

// Allreduce in one phase: everyone sends its whole tensor to everyone and reduces what
// it gets, in ascending order.
void add_flat_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
