#pragma once

#include "engine/collectives/team.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// output = postscale * adasum over the team of (prescale * input), for each tensor in
// it by itself: `request.splits` are their lengths (none: all of it is one), and what
// is behind the last of them is summed. Three phases:
//
// - Each member collects its slice of all inputs.
// - Of a tensor that several slices share, their members exchange the inner products of
//   their parts: n (n + 1) / 2 numbers.
// - Each combines its slice with the weights that follow, and sends it to all.
//
// So the tensor crosses the wire twice, as in any allreduce, whatever n. Beside it
// stand n (n + 1) / 2 multiplications per element, shared among n members, and memory
// as large as the tensor.
void add_adasum_allreduce(Plan& plan, const Team& team, const Request& request);

// `splits` are lengths of tensors that fit into the input.
void check_adasum(const Request& request);

}  // namespace bluecomm
