// How a member leaves its epoch and goes on in a lineage of its own, with others that
// have left it, too. docs/membership.md has the states.
//
// A member that has left an epoch takes no part in its decisions any more. For the
// others it is like a member that has crashed, so their decisions stay safe.
#include <utility>

#include "engine/membership/membership.h"

namespace bluecomm {

// Leaves the epoch if this member has been held for long enough.
void Membership::consider_leaving(Time now) {
  if (secession_) return;
  if (standing() != Standing::kHeld) {
    held_since_.reset();
  } else if (!held_since_) {
    held_since_ = now;
  } else if (now - *held_since_ >= timing_.split) {
    leave_epoch(now);
  }
}

void Membership::leave_epoch(Time now) {
  if (secession_) return;
  proposer_.abandon();
  my_turn_.reset();
  held_since_.reset();
  secession_.emplace(epoch().size(), rank_, timing_, now);
  claim_again(now);
}

// Takes a message as a member that splits, or has split. Returns false for a message to
// a member of the newest epoch, and for a claim that accuses its sender.
bool Membership::receive_split(Uid sender, const MembershipMessage& message, Time now) {
  const bool is_claim = message.action == MembershipAction::kClaim;
  if (founding_ && !epoch().rank_of(sender)) {
    if (is_claim) answer_founder(sender, message);
    return true;
  }
  const bool is_here = is_about_next(sender, message);
  if (!secession_) {
    if (!is_claim) return false;
    if (!is_here) {
      if (has_left_us(sender, message)) observe(sender, Evidence::kBroken, now);
      answer_founder(sender, message);
      return true;
    }
    if (standing() != Standing::kHeld) return false;
    leave_epoch(now);
  }
  if (is_here && is_claim) {
    suspicions_.hear(message.from);
    secession_->hear(message.from, static_cast<Secession::Stage>(message.limit),
                     message.proposal.survivors);
  }
  advance(now);
  return true;
}

void Membership::advance_secession(Time now) {
  const Secession::Stage before = secession_->stage();
  const MemberSet claimed = secession_->claim();
  const bool is_founded = secession_->advance(suspicions_.unreachable(), now);
  const bool is_new = secession_->stage() != before || secession_->claim() != claimed;
  if (is_new || now >= repeat_at_) claim_again(now);
  if (!is_founded) return;
  founding_ = claim();
  decided_.reset();
  Epoch first = split_epoch(epoch(), secession_->claim());
  secession_.reset();
  const int rank = first.rank_of(me_).value_or(-1);
  install(std::move(first), rank, now);
}

// Tells all others of the epoch what this member claims.
void Membership::claim_again(Time now) {
  repeat_at_ = now + timing_.repeat;
  for (int other = 0; other < epoch().size(); ++other) {
    if (other != rank_ && !suspicions_.dead().contains(other)) {
      posts_.push_back({uid_of(other), claim()});
    }
  }
}

MembershipMessage Membership::claim() const {
  MembershipMessage claim = message(MembershipAction::kClaim);
  claim.limit = static_cast<std::uint64_t>(secession_->stage());
  claim.proposal.survivors = secession_->claim();
  return claim;
}

// Returns whether a claim shows that its sender, a member of the newest epoch here, has
// left an earlier one without this member.
bool Membership::has_left_us(Uid sender, const MembershipMessage& message) const {
  if (!epoch().rank_of(sender) || message.number >= epoch().number) return false;
  if (!founding_ || message.number > founding_->number) return true;
  return message.epoch == founding_->epoch && message.size == founding_->size &&
         message.limit != static_cast<std::uint64_t>(Secession::Stage::kGathering) &&
         !message.proposal.survivors.contains(founding_->from);
}

// Repeats what this member claimed when it left an epoch, to another that leaves it.
void Membership::answer_founder(Uid sender, const MembershipMessage& message) {
  if (!founding_ || message.epoch != founding_->epoch ||
      message.limit == static_cast<std::uint64_t>(Secession::Stage::kFounded)) {
    return;
  }
  posts_.push_back({sender, *founding_});
}

}  // namespace bluecomm
