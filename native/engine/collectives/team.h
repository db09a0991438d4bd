// The building blocks of collectives: the ranks that take part, their memory, and the
// reduction.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/call.h"
#include "engine/layout.h"
#include "engine/plan.h"

namespace bluecomm {

// Ranks that work on one range of bytes together, and this rank's index among them.
struct Team {
  std::vector<int> ranks;  // global
  int me = 0;              // index in `ranks`
  std::uint32_t slot = 0;  // distinguishes teams that work in the same phases

  int size() const { return static_cast<int>(ranks.size()); }
};

// Returns the team of `members`, which are indices in `group` and include this rank.
Team team_of(const Group& group, const std::vector<int>& members,
             std::uint32_t slot = 0);

// Returns the team of all members.
Team team_of(const Group& group);

// The input and output of a tensor or of a part of it. They are the same memory or do
// not overlap.
struct Buffers {
  std::span<const std::byte> input;
  std::span<std::byte> output;

  bool past_caches = false;  // see Gather; for parts that are only copied

  bool in_place() const { return input.data() == output.data(); }
  Buffers part(Range range) const {
    return {range.of(input), range.of(output), past_caches};
  }
};

// result = postscale * op over all members of (prescale * value).
//
// Each value is scaled when it is first combined, and the result is scaled once, when
// it is complete. Partial results in between already include the prescale.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  // Returns a gather of `op` over `sources` that will be combined further.
  Gather partial(std::span<std::byte> dst, std::vector<Source> sources) const;
  // Returns a gather of `op` over the last `sources`, which gives the result.
  Gather complete(std::span<std::byte> dst, std::vector<Source> sources) const;
};

// Returns the reduction that `call` describes, over `members` members. An average is
// a sum that is scaled once at the end.
Reduction reduction_of(const Call& call, int members);

// Returns phase `index` of `plan`, adding empty phases if there are fewer.
Phase& phase_at(Plan& plan, std::size_t index);

// Lets the phases after phase `first` begin while the phases before them run.
void overlap_phases(Plan& plan, std::size_t first);

// Return a gather that is filled by one message, or from this rank's memory.
Gather copy_from(int peer, std::uint32_t slot, std::span<std::byte> dst);
Gather copy_own(std::span<const std::byte> own, std::span<std::byte> dst);

// Return a source in this rank's memory, or at a peer.
Source own_source(std::span<const std::byte> own, double weight = 1.0);
Source source_at(int peer, std::uint32_t slot, double weight = 1.0);

}  // namespace bluecomm
