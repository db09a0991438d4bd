#pragma once

#include <cstddef>

#include "engine/collectives/team.h"
#include "engine/collectives/tuning.h"

namespace bluecomm {

// The medium through which the members of a team reach one another.
enum class Reach { kMemory, kNetwork };

// Returns the algorithm for `nbytes` bytes among members that all reach one another
// through the same medium.
Algorithm choose_allreduce(std::size_t nbytes, int members, Reach reach,
                           const Tuning& tuning);

// Returns whether a call may name `algorithm` itself (see Call::algorithm).
bool can_be_chosen(Algorithm algorithm);

// Adds the phases of `algorithm` (flat, doubling, direct or ring), starting at phase
// `first`.
void add_allreduce(Algorithm algorithm, Plan& plan, std::size_t first, const Team& team,
                   const Reduction& reduction, const Buffers& buffers);

// Returns whether the phases of `algorithm` may overlap (see engine/plan.h).
bool may_overlap(Algorithm algorithm);

// Returns the number of phases that add_allreduce() adds if no prescale is needed.
std::size_t allreduce_phases(Algorithm algorithm, int members);

}  // namespace bluecomm
