#include "engine/membership/suspicions.h"

#include <algorithm>
#include <cstddef>

namespace bluecomm {

Suspicions::Suspicions(int size, int me)
    : me_(me), own_(size), others_(static_cast<std::size_t>(size), Accusations(size)) {}

bool Suspicions::observe(int rank, Evidence evidence) {
  if (rank == me_) return false;
  MemberSet* const sets[] = {&own_.silent, &own_.stopped, &own_.broken, &own_.dead};
  MemberSet& set = *sets[static_cast<std::size_t>(evidence)];
  if (set.contains(rank)) return false;
  set.insert(rank);
  return true;
}

bool Suspicions::hear(int rank) {
  bool withdrawn = false;
  for (MemberSet* set : {&own_.silent, &own_.stopped, &own_.broken}) {
    withdrawn = withdrawn || set->contains(rank);
    set->erase(rank);
  }
  for (Accusations& said : others_) said.stopped.erase(rank);
  return withdrawn;
}

void Suspicions::listen(int from, const Accusations& accusations) {
  if (from == me_) return;
  others_[static_cast<std::size_t>(from)] = accusations;
}

bool Suspicions::is_silent_to_enough(int rank) const {
  int accusers = 0;
  int others = 0;
  for (int other = 0; other < own_.dead.size(); ++other) {
    if (other == rank || own_.dead.contains(other)) continue;
    ++others;
    if (said_by(other).silent.contains(rank)) ++accusers;
  }
  return accusers > 0 && accusers >= std::min(2, others);
}

MemberSet Suspicions::accused() const {
  MemberSet accused = own_.dead;
  for (int accuser = 0; accuser < accused.size(); ++accuser) {
    if (own_.dead.contains(accuser)) continue;
    accused |= said_by(accuser).stopped | said_by(accuser).broken;
  }
  for (int rank = 0; rank < accused.size(); ++rank) {
    if (!accused.contains(rank) && is_silent_to_enough(rank)) accused.insert(rank);
  }
  return accused;
}

MemberSet Suspicions::unreachable() const {
  MemberSet unreachable = own_.dead | own_.silent | own_.stopped | own_.broken;
  for (int accuser = 0; accuser < unreachable.size(); ++accuser) {
    if (!own_.dead.contains(accuser)) unreachable |= said_by(accuser).stopped;
  }
  for (int rank = 0; rank < unreachable.size(); ++rank) {
    if (is_silent_to_enough(rank)) unreachable.insert(rank);
  }
  unreachable.erase(me_);
  return unreachable;
}

bool Suspicions::is_vouched_for(int rank, int witness) const {
  const Accusations& said = said_by(witness);
  if (own_.dead.contains(rank) || own_.broken.contains(rank)) return false;
  for (int accuser = 0; accuser < own_.dead.size(); ++accuser) {
    if (said_by(accuser).stopped.contains(rank)) return false;
  }
  return !said.silent.contains(rank) && !said.broken.contains(rank);
}

Suspicions Suspicions::carry(const Epoch& base, const Epoch& next, int me) const {
  Suspicions carried(next.size(), me);
  for (int rank = 0; rank < next.size(); ++rank) {
    const Uid uid = next.members[static_cast<std::size_t>(rank)].uid;
    const int before = base.rank_of(uid).value_or(-1);
    if (before == -1 || rank == me) continue;
    if (own_.dead.contains(before)) carried.own_.dead.insert(rank);
    if (own_.broken.contains(before)) carried.own_.broken.insert(rank);
  }
  return carried;
}

}  // namespace bluecomm
