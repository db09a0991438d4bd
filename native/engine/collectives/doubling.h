#pragma once

#include <cstddef>

#include "engine/collectives/team.h"

namespace bluecomm {

// Allreduce by recursive doubling: in step k, members whose numbers differ in bit k
// exchange all they have, so log2(n) steps are enough. Where n is not a power of two,
// as many pairs as there are members too many fold into one first, and the members that
// were left out are told the result at the end.
//
// Both sides of an exchange reduce the same two values in the same order, so all
// members hold the same bits. A prescale takes a phase of its own.
//
// Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
// Operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.5.
void add_doubling_allreduce(Plan& plan, std::size_t first, const Team& team,
                            const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
