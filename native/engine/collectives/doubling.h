#pragma once

#include <cstddef>

#include "engine/collectives/team.h"

namespace bluecomm {

// Adds an allreduce by recursive doubling: in step k, members whose numbers differ in
// bit k exchange their whole partial result, so log2(n) steps suffice. If n exceeds a
// power of two by m, the first m pairs of members are folded first: one member of each
// pair continues for both and sends the other one the result at the end.
//
// Both sides of an exchange reduce the same two values in the same order, so all
// members get the same bits. A prescale takes a phase of its own.
//
// Source: Thakur, Rabenseifner and Gropp, "Optimization of Collective Communication
// Operations in MPICH", Int. J. High Perform. Comput. Appl. 19(1), 2005, section 4.5.
void add_doubling_allreduce(Plan& plan, std::size_t first, const Team& team,
                            const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
