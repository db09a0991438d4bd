#pragma once

#include <cstddef>

#include "engine/collectives/team.h"
#include "engine/collectives/tuning.h"

namespace bluecomm {

// Adds an allreduce for groups with several members per machine:
// 1. The members of a machine reduce the tensor among themselves, one slice each.
// 2. Each member reduces its bytes with the members that own the same bytes on other
//    machines. All members do so together, so that each byte leaves a machine once and
//    all links are used.
// 3. The members of a machine copy one another's slices.
// Machines may have different numbers of members (see Piece in layout.h).
void add_hierarchical_allreduce(Plan& plan, std::size_t first, const Group& group,
                                const Reduction& reduction, const Buffers& buffers,
                                const Tuning& tuning);

}  // namespace bluecomm
