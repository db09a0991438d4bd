#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <optional>
#include <unordered_set>
#include <vector>

#include "engine/membership/epoch.h"
#include "engine/membership/membership_message.h"
#include "engine/membership/membership_timing.h"
#include "engine/membership/proposer.h"
#include "engine/membership/secession.h"
#include "engine/membership/suspicions.h"
#include "engine/membership/voter.h"

namespace bluecomm {

// One member's part in the agreement about who is a member; docs/membership.md
// describes the protocol. Pure: it has no clock, no thread and no socket. The caller
// passes in evidence, messages and the time, and sends what take_posts() returns. Not
// thread-safe.
class Membership {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // A message to send to a member. It may be lost; it is sent again if it matters.
  struct Post {
    Uid to = 0;
    MembershipMessage message;
  };

  enum class Standing {
    kMember,    // takes part in the newest epoch that it knows
    kHeld,      // reaches too few members to go on without the others
    kExcluded,  // the others go on without it; the process may join as a new member
  };

  // The behavior of a member that reaches too few others to go on with its epoch. If it
  // splits, it is never excluded: it leaves the epoch, and goes on in another lineage.
  enum class Minority : bool { kHolds, kSplits };

  // How many rounds a member may still start while a decision is under way.
  static constexpr std::uint64_t kRoundsAhead = 16;

  // Throws std::invalid_argument unless `me` is in `epoch`, whose size must be at most
  // MembershipMessage::kMaxMembers.
  Membership(Epoch epoch, Uid me, Time now, const MembershipTiming& timing = {},
             Minority minority = Minority::kHolds);

  // Records evidence about a member; ignores processes that are no members. Evidence
  // other than a death lasts until a message of the member arrives, or until the next
  // epoch: report it again while it holds.
  void observe(Uid member, Evidence evidence, Time now);
  // Records that something has arrived from a member.
  void hear(Uid member, Time now);
  // Takes a message that the link to `sender` has brought. Ignores messages that no
  // member can have sent.
  void receive(Uid sender, const MembershipMessage& message, Time now);
  // Asks all others for decisions that this member may have missed.
  void ask(Time now);
  // To be called at least every MembershipTiming::repeat while is_deciding().
  void tick(Time now);

  // Returns the messages to send, oldest first.
  std::vector<Post> take_posts();

  // Returns the newest epoch, whose members collectives need at once.
  const Epoch& epoch() const { return epochs_.back(); }
  // Returns the epoch in which this member runs a round: the newest that has begun.
  const Epoch& epoch_of(std::uint64_t round) const;
  // Returns whether this member may start a round now, and records that it does. Rounds
  // are started in ascending order.
  bool start_round(std::uint64_t round);

  Standing standing() const;
  // Returns whether an accusation or a begun decision is open.
  bool is_deciding() const;

 private:
  bool accused_any() const { return !suspicions_.accused().empty(); }
  // Returns whether the next epoch has to be decided.
  bool is_open() const { return voter_.promised().is_set() || accused_any(); }
  bool is_about_next(Uid sender, const MembershipMessage& message) const;
  Uid uid_of(int rank) const {
    return epoch().members[static_cast<std::size_t>(rank)].uid;
  }
  MembershipMessage message(MembershipAction action, Ballot ballot = {}) const;
  MembershipMessage suspect() const;
  void tell_all(Time now);

  void notice_absence(Time now);
  // Records deaths, after which nothing that the dead have sent counts any more.
  void mourn(const MemberSet& dead);
  void exclude(Time now);
  void install(Epoch next, int rank, Time now);

  // membership_splits.cpp
  void consider_leaving(Time now);
  void leave_epoch(Time now);
  bool receive_split(Uid sender, const MembershipMessage& message, Time now);
  void advance_secession(Time now);
  void claim_again(Time now);
  MembershipMessage claim() const;
  bool has_left_us(Uid sender, const MembershipMessage& message) const;
  void answer_founder(Uid sender, const MembershipMessage& message);

  // membership_decisions.cpp
  void advance(Time now);
  void start_ballot(Time now);
  void step_aside(Time now);
  // How long this member leaves the proposing to those before it.
  Time::duration turn() const;
  int lowest_reachable() const;
  MemberSet likely_absent() const;
  void repeat(Time now);
  void send_to_missing(Time now);
  void receive_open(const MembershipMessage& message, Time now);
  void report(const MembershipMessage& gather, Time now);
  void vote(const MembershipMessage& prepare, Time now);
  void refuse(const MembershipMessage& request, Time now);
  void install(const Proposal& proposal, Time now);
  void post(int rank, MembershipMessage message, Time now);

  const Uid me_;
  const MembershipTiming timing_;
  const Minority minority_;
  bool is_excluded_ = false;
  std::deque<Epoch> epochs_;  // those of rounds to come, and the newest
  std::uint64_t next_round_ = 0;
  std::unordered_set<Uid> dead_;

  // About the epoch after the newest. Ranks are those of the newest.
  std::uint64_t id_ = 0;  // of the newest
  int rank_ = 0;          // of this member
  Suspicions suspicions_;
  Voter voter_;
  Proposer proposer_;
  std::optional<std::uint64_t> limit_;  // starts no round from this one on
  std::optional<Time> my_turn_;         // when this member proposes
  int attempts_ = 0;                    // own ballots that failed
  std::uint32_t highest_counter_ = 0;   // of all ballots that it knows of
  // The last decision, for members that have not learned of it.
  std::optional<MembershipMessage> decided_;

  // While this member splits off. It has left the newest epoch for good.
  std::optional<Secession> secession_;
  std::optional<Time> held_since_;
  // The claim with which this member has left an earlier epoch, for others that leave
  // it.
  std::optional<MembershipMessage> founding_;

  Time last_input_;
  Time repeat_at_;
  int repeat_to_ = 0;
  std::vector<Post> posts_;
};

}  // namespace bluecomm
