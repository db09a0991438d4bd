// Runs the ballots by which a member has the next epoch decided. Membership calls it
// for each answer and each tick. docs/membership.md explains why the decisions are
// safe.
#include "engine/membership/proposer.h"

#include <algorithm>
#include <cstddef>

#include "engine/membership/primary.h"

namespace bluecomm {

void Proposer::gather(Ballot ballot, Time now) {
  ballot_ = ballot;
  since_ = now;
  reported_ = MemberSet(size_);
  acked_ = MemberSet(size_);
  limit_ = 0;
  accepted_ = {};
  accepted_proposal_ = {};
  broken_.assign(static_cast<std::size_t>(size_), MemberSet(size_));
  proposal_ = {};
}

void Proposer::take_report(int from, std::uint64_t limit, Ballot accepted,
                           const Proposal& proposal, const MemberSet& broken) {
  if (!is_gathering()) return;
  reported_.insert(from);
  limit_ = std::max(limit_, limit);
  broken_[static_cast<std::size_t>(from)] = broken;
  if (accepted > accepted_) {
    accepted_ = accepted;
    accepted_proposal_ = proposal;
  }
}

MemberSet Proposer::missing(const MemberSet& dead) const {
  return is_gathering() ? MemberSet::all(size_) - dead - reported_
                        : reported_ - dead - acked_;
}

bool Proposer::waits_for_any(const MemberSet& missing, const MemberSet& unreachable,
                             Time now) const {
  const auto waited = now - since_;
  if (waited >= timing_.patience) return false;
  return !(waited >= timing_.answer ? missing - unreachable : missing).empty();
}

Proposer::Step Proposer::advance(Time now, const MemberSet& dead,
                                 const MemberSet& unreachable) {
  if (!is_active() || waits_for_any(missing(dead), unreachable, now)) {
    return Step::kWait;
  }
  if (is_gathering()) {
    // Without enough reports it goes on waiting: more may come, or more may die.
    if (now - since_ < timing_.gather || !is_primary(reported_, dead)) {
      return Step::kWait;
    }
    proposal_ = choose(dead);
    announced_ = dead;
    since_ = now;
    return Step::kPrepare;
  }
  if (is_primary(acked_, announced_)) return Step::kCommit;
  // All that accepted must have known of each death that the decision counts on.
  if (is_primary(acked_, dead)) return Step::kRestart;
  return now - since_ < timing_.patience ? Step::kWait : Step::kGiveUp;
}

Proposal Proposer::choose(const MemberSet& dead) const {
  // An accepted proposal may have been decided.
  if (accepted_.is_set()) return accepted_proposal_;
  return {fully_linked(reported_ - dead, broken_), limit_};
}

MemberSet fully_linked(MemberSet present, const std::vector<MemberSet>& broken) {
  const auto is_broken = [&](int a, int b) {
    return broken[static_cast<std::size_t>(a)].contains(b) ||
           broken[static_cast<std::size_t>(b)].contains(a);
  };
  for (;;) {
    int worst = -1;
    int most = 0;
    for (int a = present.lowest(); a != -1; a = present.lowest(a + 1)) {
      int count = 0;
      for (int b = present.lowest(); b != -1; b = present.lowest(b + 1)) {
        if (a != b && is_broken(a, b)) ++count;
      }
      if (count > 0 && count >= most) {
        worst = a;
        most = count;
      }
    }
    if (worst == -1) return present;
    present.erase(worst);
  }
}

}  // namespace bluecomm
