#pragma once

#include <cstddef>

#include "engine/collectives/team.h"
#include "engine/collectives/tuning.h"

namespace bluecomm {

// Allreduce where members share machines:
// 1. the members of a machine reduce among themselves, each its slice of the tensor;
// 2. all of them at once reduce with other machines, each with whoever owns the same
//    bytes there, so that each byte leaves a machine once and all links are used;
// 3. the members of a machine copy one another's slices.
// Machines may hold different numbers of members (layout.h, Piece).
void add_hierarchical_allreduce(Plan& plan, std::size_t first, const Group& group,
                                const Reduction& reduction, const Buffers& buffers,
                                const Tuning& tuning);

}  // namespace bluecomm
