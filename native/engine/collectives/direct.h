// The two halves of an allreduce, each in one phase. On one machine this moves as
// little memory as possible: each rank reads its slice of every tensor in place, writes
// it once, and then copies the slices of the others.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/collectives/team.h"

namespace bluecomm {

// Adds to phase `number`: member i reduces slices[i] of all inputs, in ascending order,
// into `own_slice`. `own_slice` is as long as slices[i], and either is that very slice
// of the input or does not overlap the input.
void add_direct_reduce_scatter(Plan& plan, std::size_t number, const Team& team,
                               const Reduction& reduction,
                               std::span<const std::byte> input,
                               std::span<std::byte> own_slice,
                               const std::vector<Range>& slices);

// Adds to phase `number`: member i sends slices[i] of `tensor` to all others and copies
// their slices.
void add_direct_allgather(Plan& plan, std::size_t number, const Team& team,
                          std::span<std::byte> tensor,
                          const std::vector<Range>& slices);

// Adds both halves: an allreduce in two phases.
void add_direct_allreduce(Plan& plan, std::size_t first, const Team& team,
                          const Reduction& reduction, const Buffers& buffers);

// Adds an allreduce that processes one block after another, each in two phases. A block
// has at most about `block_bytes` bytes. Between blocks, no member waits until its
// sends have been read.
void add_block_allreduce(Plan& plan, const Team& team, const Reduction& reduction,
                         const Buffers& buffers, std::size_t block_bytes);

}  // namespace bluecomm
