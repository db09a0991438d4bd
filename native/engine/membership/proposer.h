#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "engine/membership/member_set.h"
#include "engine/membership/membership_timing.h"
#include "engine/membership/voter.h"

namespace bluecomm {

// The ballots of one member about the epoch after one epoch: collects the reports,
// makes a proposal, and counts who accepts it.
class Proposer {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // The next step of the caller. kPrepare: send PREPARE to each member in missing().
  // kRestart: begin a new ballot, because more members have died, and a ballot has to
  // say so before it decides.
  enum class Step { kWait, kPrepare, kCommit, kRestart, kGiveUp };

  Proposer(int size, const MembershipTiming& timing)
      : size_(size), timing_(timing), reported_(size), acked_(size) {}

  bool is_active() const { return ballot_.is_set(); }
  bool is_gathering() const { return is_active() && proposal_.survivors.empty(); }
  Ballot ballot() const { return ballot_; }
  const Proposal& proposal() const { return proposal_; }
  // The members that have reported in this ballot.
  const MemberSet& reported() const { return reported_; }
  // The members that were dead when the proposal was made.
  const MemberSet& announced() const { return announced_; }

  // Begins a ballot, which must be higher than all before.
  void gather(Ballot ballot, Time now);
  // Ends the ballot without a decision.
  void abandon() { ballot_ = {}; }
  // Starts the waits of this ballot anew, after this process was stopped.
  void wait_anew(Time now) { since_ = now; }

  // Take the answers of members to the current ballot. `accepted` may be unset; members
  // in `broken` have lost their link to `from`.
  void take_report(int from, std::uint64_t limit, Ballot accepted,
                   const Proposal& proposal, const MemberSet& broken);
  void take_ack(int from) { acked_.insert(from); }

  // Moves on as soon as everybody has answered who is expected to.
  Step advance(Time now, const MemberSet& dead, const MemberSet& unreachable);

  // Returns the members whose answers this ballot lacks.
  MemberSet missing(const MemberSet& dead) const;

 private:
  bool waits_for_any(const MemberSet& missing, const MemberSet& unreachable,
                     Time now) const;
  Proposal choose(const MemberSet& dead) const;

  int size_;
  MembershipTiming timing_;
  Ballot ballot_;  // unset while no ballot runs
  Time since_{};   // begin of the wait for reports or for acceptance
  MemberSet reported_;
  MemberSet acked_;
  std::uint64_t limit_ = 0;        // the highest of the reports
  Ballot accepted_;                // the highest of the reports
  Proposal accepted_proposal_;     // of that ballot
  std::vector<MemberSet> broken_;  // by reporter
  Proposal proposal_;              // empty while gathering
  MemberSet announced_;
};

// Returns members of `present` between whom no link is broken: removes the one with the
// most broken links, the highest rank of these, until none has any. A link is broken if
// either end says so in `broken`.
MemberSet fully_linked(MemberSet present, const std::vector<MemberSet>& broken);

}  // namespace bluecomm
