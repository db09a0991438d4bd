// How a member takes part in the decision about the next epoch: it proposes when it is
// its turn, votes, and installs what is decided. Its messages to itself are direct
// calls.
#include <algorithm>
#include <utility>

#include "engine/membership/membership.h"

namespace bluecomm {

int Membership::lowest_reachable() const {
  return (MemberSet::all(epoch().size()) - suspicions_.unreachable()).lowest();
}

// Returns the members for which a proposer waits a short time only. A silent member is
// merely late if another one on its machine answers and does not find it silent: that
// one can ask the kernel.
MemberSet Membership::likely_absent() const {
  MemberSet absent = suspicions_.unreachable();
  if (!proposer_.is_gathering()) return absent;
  const MemberSet& reported = proposer_.reported();
  const auto host_of = [this](int rank) {
    return epoch().members[static_cast<std::size_t>(rank)].host;
  };
  for (int rank = absent.lowest(); rank != -1; rank = absent.lowest(rank + 1)) {
    for (int other = reported.lowest(); other != -1;
         other = reported.lowest(other + 1)) {
      if (other != rank && host_of(other) == host_of(rank) &&
          suspicions_.is_vouched_for(rank, other)) {
        absent.erase(rank);
        break;
      }
    }
  }
  return absent;
}

Membership::Time::duration Membership::turn() const {
  int before = 0;
  for (int rank = 0; rank < rank_; ++rank) {
    if (!suspicions_.dead().contains(rank)) ++before;
  }
  return timing_.takeover * ((before + 1) << std::min(attempts_, 4));
}

void Membership::advance(Time now) {
  if (!is_deciding()) return;
  if (secession_) return advance_secession(now);
  if (is_open()) {
    if (!my_turn_) my_turn_ = now + turn();
    const Ballot promised = voter_.promised();
    const bool is_led =
        promised.is_set() && !suspicions_.unreachable().contains(promised.rank);
    // Otherwise two members that each count the other as lost would propose by turns
    // for ever.
    const bool leads = attempts_ == 0 && !is_led && lowest_reachable() == rank_;
    if (!proposer_.is_active() && (leads || now >= *my_turn_)) start_ballot(now);
  }
  switch (proposer_.advance(now, suspicions_.dead(), likely_absent())) {
    case Proposer::Step::kWait:
      break;
    case Proposer::Step::kPrepare:
      send_to_missing(now);
      return advance(now);
    case Proposer::Step::kCommit: {
      const Epoch base = epoch();
      install(Proposal(proposer_.proposal()), now);
      for (const Member& member : base.members) {
        if (member.uid != me_) posts_.push_back({member.uid, *decided_});
      }
      return advance(now);
    }
    case Proposer::Step::kRestart:
      start_ballot(now);
      return advance(now);
    case Proposer::Step::kGiveUp:
      step_aside(now);
      break;
  }
  if (now >= repeat_at_) repeat(now);
}

void Membership::repeat(Time now) {
  repeat_at_ = now + timing_.repeat;
  // To the member that leads, and to each in turn, because it may know the decision.
  repeat_to_ = (repeat_to_ + 1) % epoch().size();
  for (const int to : {lowest_reachable(), repeat_to_}) {
    if (to != rank_ && !suspicions_.dead().contains(to)) post(to, suspect(), now);
  }
  if (proposer_.is_active()) send_to_missing(now);
}

void Membership::start_ballot(Time now) {
  highest_counter_ = std::max(highest_counter_, voter_.promised().counter) + 1;
  proposer_.gather({highest_counter_, rank_}, now);
  my_turn_ = now + turn();
  send_to_missing(now);
}

void Membership::step_aside(Time now) {
  proposer_.abandon();
  ++attempts_;
  my_turn_ = now + turn();
}

void Membership::send_to_missing(Time now) {
  const bool gathers = proposer_.is_gathering();
  MembershipMessage request =
      message(gathers ? MembershipAction::kGather : MembershipAction::kPrepare,
              proposer_.ballot());
  if (gathers) {
    request.accusations = suspicions_.own();
  } else {
    request.proposal = proposer_.proposal();
    request.accusations.dead = proposer_.announced();
  }
  const MemberSet missing = proposer_.missing(suspicions_.dead());
  for (int rank = missing.lowest(); rank != -1; rank = missing.lowest(rank + 1)) {
    post(rank, request, now);
  }
}

void Membership::receive_open(const MembershipMessage& message, Time now) {
  const bool answers_mine =
      proposer_.is_active() && message.ballot == proposer_.ballot();
  switch (message.action) {
    case MembershipAction::kSuspect:
      suspicions_.listen(message.from, message.accusations);
      break;
    case MembershipAction::kGather:
      suspicions_.listen(message.from, message.accusations);
      report(message, now);
      break;
    case MembershipAction::kReport:
      suspicions_.listen(message.from, message.accusations);
      if (answers_mine) {
        proposer_.take_report(message.from, message.limit, message.other,
                              message.proposal, message.accusations.broken);
      }
      break;
    case MembershipAction::kPrepare:
      vote(message, now);
      break;
    case MembershipAction::kAck:
      if (answers_mine && !proposer_.is_gathering()) proposer_.take_ack(message.from);
      break;
    case MembershipAction::kNack:
      highest_counter_ = std::max(highest_counter_, message.other.counter);
      if (answers_mine) step_aside(now);
      break;
    case MembershipAction::kCommit:
      install(message.proposal, now);
      break;
    case MembershipAction::kClaim:
      // The sender has left the epoch, which is as if its link had broken for good.
      if (suspicions_.observe(message.from, Evidence::kBroken)) repeat_at_ = now;
      break;
  }
}

void Membership::report(const MembershipMessage& gather, Time now) {
  if (gather.ballot > voter_.promised() && gather.from != rank_) {
    if (proposer_.is_active()) step_aside(now);
    // Time to finish, but no more: perhaps only this member reaches enough others.
    my_turn_ = std::max(my_turn_.value_or(now + turn()), now + timing_.takeover);
  }
  if (!voter_.promise(gather.ballot)) return refuse(gather, now);
  if (!limit_) limit_ = std::max(next_round_, epoch().first_round) + kRoundsAhead;
  MembershipMessage report = message(MembershipAction::kReport, gather.ballot);
  report.limit = *limit_;
  report.accusations = suspicions_.own();
  if (voter_.accepted().is_set()) {
    report.other = voter_.accepted();
    report.proposal = voter_.proposal();
  }
  post(gather.from, std::move(report), now);
}

void Membership::vote(const MembershipMessage& prepare, Time now) {
  if (voter_.accept(prepare.ballot, prepare.proposal)) {
    post(prepare.from, message(MembershipAction::kAck, prepare.ballot), now);
  } else if (prepare.ballot < voter_.promised()) {
    refuse(prepare, now);
  }
}

void Membership::refuse(const MembershipMessage& request, Time now) {
  MembershipMessage nack = message(MembershipAction::kNack, request.ballot);
  nack.other = voter_.promised();
  post(request.from, std::move(nack), now);
}

void Membership::install(const Proposal& proposal, Time now) {
  decided_ = message(MembershipAction::kCommit);
  decided_->proposal = proposal;
  Epoch next = next_epoch(epoch(), proposal.survivors, proposal.first_round);
  const std::optional<int> rank = next.rank_of(me_);
  if (!rank) return exclude(now);
  install(std::move(next), *rank, now);
}

void Membership::install(Epoch next, int rank, Time now) {
  suspicions_ = suspicions_.carry(epoch(), next, rank);
  proposer_ = Proposer(next.size(), timing_);
  voter_ = {};
  limit_.reset();
  my_turn_.reset();
  attempts_ = 0;
  highest_counter_ = 0;
  repeat_at_ = now;
  rank_ = rank;
  id_ = next.id();
  epochs_.push_back(std::move(next));
}

void Membership::post(int rank, MembershipMessage message, Time now) {
  if (rank == rank_) return receive_open(message, now);
  posts_.push_back({uid_of(rank), std::move(message)});
}

}  // namespace bluecomm
