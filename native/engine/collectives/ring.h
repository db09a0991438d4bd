// The two halves of an allreduce around a ring, each in n - 1 phases: in every phase,
// member i sends one slice to member i + 1 and receives one from member i - 1. A rank
// uses two links, and each link carries each byte about twice, for any number of
// members.
//
// Source: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel Distrib. Comput. 69(2), 2009.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/collectives/team.h"

namespace bluecomm {

// Adds phases that copy slices[i] of member i's `tensor` to all members.
void add_ring_allgather(Plan& plan, std::size_t first, const Team& team,
                        std::span<std::byte> tensor, const std::vector<Range>& slices);

// Adds both halves: an allreduce in 2 (n - 1) phases.
void add_ring_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
