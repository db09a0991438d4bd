#include "engine/membership/secession.h"

namespace bluecomm {

Secession::Secession(int size, int me, const MembershipTiming& timing, Time now)
    : me_(me),
      timing_(timing),
      since_(now),
      claim_(size),
      heard_(static_cast<std::size_t>(size)) {
  claim_.insert(me);
}

void Secession::hear(int from, Stage stage, const MemberSet& claim) {
  if (from == me_ || claim.size() != claim_.size() || !claim.contains(from)) return;
  Heard& one = heard(from);
  // Messages may overtake each other; a later claim has a later stage or is smaller.
  if (one.stage && (stage < *one.stage ||
                    (stage == *one.stage && claim.count() >= one.claim.count()))) {
    return;
  }
  one.stage = stage;
  one.claim = claim;
}

bool Secession::advance(const MemberSet& unreachable, Time now) {
  if (stage_ == Stage::kGathering) {
    MemberSet present(claim_.size());
    MemberSet awaited(claim_.size());
    for (int rank = 0; rank < claim_.size(); ++rank) {
      if (rank == me_ || unreachable.contains(rank)) continue;
      (heard(rank).stage ? present : awaited).insert(rank);
    }
    if (!awaited.empty() && now - since_ < timing_.patience) return false;
    claim_ |= present;
    stage_ = Stage::kClaiming;
    since_ = now;
  }
  if (stage_ != Stage::kClaiming) return false;
  shrink(unreachable, now);
  for (int rank = claim_.lowest(); rank != -1; rank = claim_.lowest(rank + 1)) {
    if (rank == me_) continue;
    const Heard& one = heard(rank);
    if (one.stage == Stage::kGathering || one.claim != claim_) return false;
  }
  stage_ = Stage::kFounded;
  return true;
}

// Leaves out who goes on without this member, or without one that it counts on.
void Secession::shrink(const MemberSet& unreachable, Time now) {
  for (int rank = claim_.lowest(); rank != -1; rank = claim_.lowest(rank + 1)) {
    if (rank == me_) continue;
    const Heard& one = heard(rank);
    const bool has_claimed = one.stage != Stage::kGathering;
    // Another member may have begun to gather up to `patience` after this one.
    const bool is_late = !has_claimed && now - since_ >= 2 * timing_.patience;
    const bool goes_without_me = has_claimed && !one.claim.contains(me_);
    // A lineage that has been founded takes nobody else, and does not shrink.
    const bool has_founded = one.stage == Stage::kFounded && one.claim != claim_;
    if (unreachable.contains(rank) || is_late || goes_without_me || has_founded) {
      claim_.erase(rank);
    } else if (has_claimed) {
      claim_ -= claim_ - one.claim;
    }
  }
}

}  // namespace bluecomm
