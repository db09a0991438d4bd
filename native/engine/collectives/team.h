// What the parts of a collective share: who takes part, in which memory, how values are
// combined.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/layout.h"
#include "engine/plan.h"
#include "engine/request.h"

namespace bluecomm {

// Ranks that work on one range of bytes together, and this rank's place among them.
struct Team {
  std::vector<int> ranks;  // global
  int me = 0;              // index in `ranks`
  std::uint32_t slot = 0;  // tells teams apart that work in the same phases

  int size() const { return static_cast<int>(ranks.size()); }
};

// The team of `members` (indices in `group`), which hold this rank.
Team team_of(const Group& group, const std::vector<int>& members,
             std::uint32_t slot = 0);

// The team of all members.
Team team_of(const Group& group);

// A tensor, or a part of one, before and after: the same memory or apart.
struct Buffers {
  std::span<const std::byte> input;
  std::span<std::byte> output;

  bool past_caches = false;  // see Gather; for what is not combined here

  bool in_place() const { return input.data() == output.data(); }
  Buffers part(Range range) const {
    return {range.of(input), range.of(output), past_caches};
  }
};

// result = postscale * op over all members of (prescale * value).
//
// Each value is scaled when it is first combined, and the result once, when it is
// complete. In between stand partial results, which carry the prescale already.
struct Reduction {
  ReduceOp op = ReduceOp::kSum;
  double prescale = 1.0;
  double postscale = 1.0;

  // `op` over `sources`, which will be combined further.
  Gather partial(std::span<std::byte> dst, std::vector<Source> sources) const;
  // `op` over the last `sources`: the result.
  Gather complete(std::span<std::byte> dst, std::vector<Source> sources) const;
};

// What `request` asks of `members` members; an average is a sum, scaled once at the
// end.
Reduction reduction_of(const Request& request, int members);

// Phase number `index` of `plan`, which grows where it has fewer.
Phase& phase_at(Plan& plan, std::size_t index);

// A destination that is filled by one message, or from this rank's memory.
Gather copy_from(int peer, std::uint32_t slot, std::span<std::byte> dst);
Gather copy_own(std::span<const std::byte> own, std::span<std::byte> dst);

// A source in this rank's memory, or at a peer.
Source own_source(std::span<const std::byte> own, double weight = 1.0);
Source source_at(int peer, std::uint32_t slot, double weight = 1.0);

}  // namespace bluecomm
