#pragma once

#include <compare>
#include <cstdint>

#include "engine/membership/member_set.h"

namespace bluecomm {

// An attempt of one member to have the next epoch decided. Ballots are ordered; 0 is
// lower than all that are used.
struct Ballot {
  std::uint32_t counter = 0;
  std::int32_t rank = 0;  // of the proposer

  auto operator<=>(const Ballot&) const = default;
  bool is_set() const { return counter != 0; }
};

// A possible decision about the next epoch.
struct Proposal {
  MemberSet survivors;
  std::uint64_t first_round = 0;

  bool operator==(const Proposal&) const = default;
};

// A member's vote about the epoch after one epoch: an acceptor of single-decree Paxos.
// It forgets nothing until the epoch is decided.
class Voter {
 public:
  // Promises to take part in no lower ballot. Returns false if a higher one has been
  // promised.
  bool promise(Ballot ballot) {
    if (ballot < promised_) return false;
    promised_ = ballot;
    return true;
  }

  // Accepts a proposal. Returns false unless its ballot is the promised one.
  bool accept(Ballot ballot, const Proposal& proposal) {
    if (ballot != promised_) return false;
    accepted_ = ballot;
    proposal_ = proposal;
    return true;
  }

  Ballot promised() const { return promised_; }
  // The highest ballot of which a proposal was accepted, and that proposal.
  Ballot accepted() const { return accepted_; }
  const Proposal& proposal() const { return proposal_; }

 private:
  Ballot promised_;
  Ballot accepted_;
  Proposal proposal_;
};

}  // namespace bluecomm
