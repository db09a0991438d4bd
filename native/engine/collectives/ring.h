// Both halves of an allreduce around a ring: n - 1 phases each, in which member i sends
// one slice to member i + 1 and receives one from member i - 1. Two links per rank, and
// each carries each byte about twice, however many members there are.
//
// Source: Patarasu and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of
// workstations", J. Parallel Distrib. Comput. 69(2), 2009.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

#include "engine/collectives/team.h"

namespace bluecomm {

// Copies slices[i] of member i's `tensor` to all.
void add_ring_allgather(Plan& plan, std::size_t first, const Team& team,
                        std::span<std::byte> tensor, const std::vector<Range>& slices);

void add_ring_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers);

}  // namespace bluecomm
