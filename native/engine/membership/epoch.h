#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/membership/member_set.h"

namespace bluecomm {

// The random number of a member. A process that joins again draws a new one.
using Uid = std::uint64_t;

// A process's stay in the job.
struct Member {
  Uid uid = 0;
  std::uint64_t host = 0;  // a hash that is equal for members on one machine

  bool operator==(const Member&) const = default;
};

// The members from a certain round on. Members agree on each epoch before they use it.
struct Epoch {
  // The lineage of the epochs that a majority has decided.
  static constexpr std::uint64_t kPrimary = 0;

  std::uint32_t number = 0;
  std::uint64_t lineage = kPrimary;
  std::uint64_t first_round = 0;
  std::vector<Member> members;  // by rank

  int size() const { return static_cast<int>(members.size()); }
  // Returns the rank of a member, or nothing if it is no member.
  std::optional<int> rank_of(Uid uid) const;
  // Returns a hash of the epoch, which is equal on all members.
  std::uint64_t id() const;

  bool operator==(const Epoch&) const = default;
};

// Returns the epoch after `base` with the members in `survivors`. A survivor keeps its
// rank unless it is too high for the smaller epoch; such survivors take the free ranks,
// in ascending order.
Epoch next_epoch(const Epoch& base, const MemberSet& survivors,
                 std::uint64_t first_round);

// Returns the first epoch of the lineage of `founders`, who have left `base` together.
Epoch split_epoch(const Epoch& base, const MemberSet& founders);

}  // namespace bluecomm
