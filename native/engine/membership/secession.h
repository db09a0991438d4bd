#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <vector>

#include "engine/membership/member_set.h"
#include "engine/membership/membership_timing.h"

namespace bluecomm {

// How members that cannot go on with their epoch agree to go on by themselves: each
// claims the set of those with whom it goes on, and claims only ever shrink. A member
// begins the new lineage once all in its claim claim the same set. So two lineages
// never count on each other's members (docs/membership.md has the reason). Pure.
class Secession {
 public:
  using Time = std::chrono::steady_clock::time_point;

  enum class Stage : std::uint8_t {
    kGathering = 1,  // finds out who else has left the epoch
    kClaiming,       // claims a set of members
    kFounded,        // has begun the lineage of its claim
  };

  // Ranks are those of the epoch that `me` leaves.
  Secession(int size, int me, const MembershipTiming& timing, Time now);

  // Takes the claim of another member. Ignores one that the sender cannot have made.
  void hear(int from, Stage stage, const MemberSet& claim);

  // Moves on; `unreachable` are the members of whom no answer is expected. Returns
  // whether the lineage of claim() has just been founded.
  bool advance(const MemberSet& unreachable, Time now);

  Stage stage() const { return stage_; }
  // The members with whom this member goes on; while it gathers, only itself.
  const MemberSet& claim() const { return claim_; }

 private:
  struct Heard {
    std::optional<Stage> stage;
    MemberSet claim;
  };

  Heard& heard(int rank) { return heard_[static_cast<std::size_t>(rank)]; }
  void shrink(const MemberSet& unreachable, Time now);

  int me_;
  MembershipTiming timing_;
  Time since_;  // begin of the stage
  Stage stage_ = Stage::kGathering;
  MemberSet claim_;
  std::vector<Heard> heard_;  // by rank
};

}  // namespace bluecomm
