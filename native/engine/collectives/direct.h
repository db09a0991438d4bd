// Both halves of an allreduce in one phase each. On one machine this is the least that
// memory must move: each rank reads its slice of every tensor where it lies, writes it
// once, and then copies the slices of the others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/collectives/team.h"

namespace bluecomm {

// Phase `number`: member i reduces slices[i] of all inputs, in ascending order, into
// `own_slice`, which is as long, and apart from the input or its slices[i] itself.
void add_direct_reduce_scatter(Plan& plan, std::size_t number, const Team& team,
                               const Reduction& reduction,
                               std::span<const std::byte> input,
                               std::span<std::byte> own_slice,
                               const std::vector<Range>& slices);

// Phase `number`: member i sends slices[i] of `tensor` to all and copies theirs.
void add_direct_allgather(Plan& plan, std::size_t number, const Team& team,
                          std::span<std::byte> tensor,
                          const std::vector<Range>& slices);

// Both: an allreduce. Two phases.
void add_direct_allreduce(Plan& plan, std::size_t first, const Team& team,
                          const Reduction& reduction, const Buffers& buffers);

// The same for one block of at most about `block_bytes` after the other, in two phases
// each; nobody waits between blocks for what it has sent to be read.
void add_block_allreduce(Plan& plan, const Team& team, const Reduction& reduction,
                         const Buffers& buffers, std::size_t block_bytes);

}  // namespace bluecomm
