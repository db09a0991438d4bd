#pragma once

#include "engine/call.h"
#include "engine/collectives/team.h"
#include "engine/plan.h"

namespace bluecomm {

// output = postscale * adasum over the team of (prescale * input). Adasum is applied to
// each tensor in the input separately: `call.splits` are their lengths, or empty if
// the input is one tensor. Elements after the last tensor are summed. Three phases:
//
// - Each member collects its slice of all inputs.
// - If a tensor lies in several slices, their members exchange the inner products of
//   their parts and the exponents taken out of them: n (n + 1) / 2 + n numbers.
// - Each member computes the weights, combines its slice, and sends it to all.
//
// So the tensor crosses the network twice for any n, as in any allreduce. Adasum
// additionally needs n (n + 1) / 2 multiplications per element, which the n members
// share, and as much scratch memory as the tensor has bytes.
void add_adasum_allreduce(Plan& plan, const Team& team, const Call& call);

// Checks that the tensors whose lengths are `splits` fit into the input.
void check_adasum(const Call& call);

}  // namespace bluecomm
