#pragma once

#include <cstddef>

#include "engine/collectives/team.h"
#include "engine/collectives/tuning.h"

namespace bluecomm {

// What lies between the members of a team.
enum class Reach { kMemory, kNetwork };

// The algorithm for `nbytes` bytes and members that all reach one another alike.
Algorithm choose_allreduce(std::size_t nbytes, int members, Reach reach,
                           const Tuning& tuning);

// The phases of `algorithm` (flat, doubling, direct or ring), from number `first` on.
void add_allreduce(Algorithm algorithm, Plan& plan, std::size_t first, const Team& team,
                   const Reduction& reduction, const Buffers& buffers);

// How many phases that is, for input that needs no prescale.
std::size_t allreduce_phases(Algorithm algorithm, int members);

}  // namespace bluecomm
