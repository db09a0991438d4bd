// The inputs of a member, and the rounds that it may start. Each input is handled to
// its end: what it calls for is in membership_decisions.cpp.
#include "engine/membership/membership.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "engine/membership/primary.h"

namespace bluecomm {

Membership::Membership(Epoch epoch, Uid me, Time now, const MembershipTiming& timing,
                       Minority minority)
    : me_(me),
      timing_(timing),
      minority_(minority),
      next_round_(epoch.first_round),
      id_(epoch.id()),
      rank_(epoch.rank_of(me).value_or(-1)),
      suspicions_(epoch.size(), rank_),
      proposer_(epoch.size(), timing),
      last_input_(now),
      repeat_at_(now) {
  if (rank_ == -1 || epoch.size() > MembershipMessage::kMaxMembers) {
    throw std::invalid_argument("the first epoch has " + std::to_string(epoch.size()) +
                                " members; it must include this process, and at most " +
                                std::to_string(MembershipMessage::kMaxMembers));
  }
  epochs_.push_back(std::move(epoch));
}

void Membership::observe(Uid member, Evidence evidence, Time now) {
  notice_absence(now);
  if (member == me_) return;
  if (evidence == Evidence::kDead) dead_.insert(member);
  const std::optional<int> rank = epoch().rank_of(member);
  if (is_excluded_ || !rank) return;
  if (suspicions_.observe(*rank, evidence)) repeat_at_ = now;
  advance(now);
}

void Membership::hear(Uid member, Time now) {
  notice_absence(now);
  const std::optional<int> rank = epoch().rank_of(member);
  if (is_excluded_ || !rank || !suspicions_.hear(*rank) || secession_) return;
  tell_all(now);  // and a member that was held may go on
  attempts_ = 0;
  if (my_turn_) my_turn_ = std::min(*my_turn_, now + turn());
}

void Membership::receive(Uid sender, const MembershipMessage& message, Time now) {
  // A message of the dead may contradict a decision that counts on their deaths.
  if (dead_.contains(sender)) return;
  if (minority_ == Minority::kSplits && receive_split(sender, message, now)) return;
  hear(sender, now);
  if (is_about_next(sender, message)) {
    if (!is_excluded_) mourn(message.accusations.dead);
    if (!is_excluded_) receive_open(message, now);
  } else if (message.number > epoch().number) {
    // The others have an epoch that this member does not know. It missed a decision, of
    // which they tell it when asked, or one was made without it.
    if (message.action == MembershipAction::kCommit) {
      decided_ = message;  // for others that were left behind
      exclude(now);
    } else if (!is_excluded_) {
      posts_.push_back({sender, suspect()});
    }
  }
  if (decided_ && message.number <= decided_->number &&
      message.action != MembershipAction::kCommit) {
    posts_.push_back({sender, *decided_});
  }
  advance(now);
}

void Membership::ask(Time now) {
  notice_absence(now);
  if (!is_excluded_ && !secession_) tell_all(now);
}

void Membership::tick(Time now) {
  notice_absence(now);
  if (minority_ == Minority::kSplits) consider_leaving(now);
  advance(now);
}

std::vector<Membership::Post> Membership::take_posts() {
  return std::exchange(posts_, {});
}

const Epoch& Membership::epoch_of(std::uint64_t round) const {
  auto epoch = epochs_.end() - 1;
  while (epoch != epochs_.begin() && epoch->first_round > round) --epoch;
  return *epoch;
}

bool Membership::start_round(std::uint64_t round) {
  if (is_excluded_ || secession_ || (limit_ && round >= *limit_)) return false;
  next_round_ = std::max(next_round_, round + 1);
  while (epochs_.size() > 1 && epochs_[1].first_round <= round) epochs_.pop_front();
  return true;
}

Membership::Standing Membership::standing() const {
  if (is_excluded_) return Standing::kExcluded;
  if (secession_) return Standing::kHeld;
  const MemberSet reachable =
      MemberSet::all(epoch().size()) - suspicions_.unreachable();
  return is_primary(reachable, suspicions_.dead()) ? Standing::kMember
                                                   : Standing::kHeld;
}

bool Membership::is_deciding() const {
  return !is_excluded_ && (secession_ || is_open() || !suspicions_.own().empty());
}

bool Membership::is_about_next(Uid sender, const MembershipMessage& message) const {
  return message.number == epoch().number && message.epoch == id_ &&
         message.size == epoch().size() && epoch().rank_of(sender) == message.from;
}

MembershipMessage Membership::message(MembershipAction action, Ballot ballot) const {
  MembershipMessage message;
  message.action = action;
  message.number = epoch().number;
  message.epoch = id_;
  message.size = epoch().size();
  message.from = rank_;
  message.ballot = ballot;
  message.proposal.survivors = MemberSet(message.size);
  message.accusations = Accusations(message.size);
  return message;
}

MembershipMessage Membership::suspect() const {
  MembershipMessage suspect = message(MembershipAction::kSuspect);
  suspect.accusations = suspicions_.own();
  return suspect;
}

// Tells all others what this member says of them.
void Membership::tell_all(Time now) {
  for (int other = 0; other < epoch().size(); ++other) {
    if (other != rank_ && !suspicions_.dead().contains(other)) {
      post(other, suspect(), now);
    }
  }
}

void Membership::notice_absence(Time now) {
  if (now - last_input_ > timing_.jump) {
    proposer_.wait_anew(now);
    if (my_turn_) my_turn_ = now + turn();
    // On a busy machine each turn may be late, so a part of the absence counts.
    if (held_since_) *held_since_ += now - last_input_ - timing_.jump;
  }
  last_input_ = now;
}

void Membership::mourn(const MemberSet& dead) {
  for (int rank = dead.lowest(); rank != -1; rank = dead.lowest(rank + 1)) {
    if (rank == rank_) continue;
    dead_.insert(uid_of(rank));
    suspicions_.observe(rank, Evidence::kDead);
  }
}

void Membership::exclude(Time now) {
  if (minority_ == Minority::kSplits) return leave_epoch(now);
  is_excluded_ = true;
  proposer_.abandon();
  my_turn_.reset();
}

}  // namespace bluecomm
