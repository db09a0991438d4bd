// The rules that a schedule checks: after each step of a member, and at the end.
#include <algorithm>

#include "engine/membership/primary.h"
#include "tests/membership/schedule.h"

namespace bluecomm::test {
namespace {

using namespace std::chrono_literals;

constexpr auto kAlone = 5s;
constexpr int kMessagesOfQuiet = 20'000;

}  // namespace

// --- At any time ---------------------------------------------------------------------

void Schedule::check_install(int index) {
  Node& node = nodes_[at(index)];
  const Membership& membership = *node.membership;
  const Epoch& epoch = membership.epoch();
  if (epoch.number + 1 == node.installed.size()) return;
  if (epoch.number != node.installed.size())
    fail(describe(index) + " skipped an epoch");
  ++epochs_;
  const std::uint64_t id = epoch.id();
  node.installed.push_back(id);
  node.lineages.push_back(epoch.lineage);
  note(describe(index) + " installs epoch " + std::to_string(epoch.number) + " of " +
       std::to_string(epoch.size()) + " from round " +
       std::to_string(epoch.first_round));
  if (!epoch.rank_of(1000 + static_cast<Uid>(index))) {
    fail(describe(index) + " installs an epoch without itself");
  }
  if (epoch.lineage == Epoch::kPrimary && node.rounds.size() > epoch.first_round) {
    fail(describe(index) + " ran round " + std::to_string(node.rounds.size() - 1) +
         " before it installed the epoch of that round");
  }
  for (int other = 0; other < mix_.size; ++other) {
    const Node& them = nodes_[at(other)];
    if (!them.alive || them.installed.size() <= epoch.number) continue;
    if (them.lineages[epoch.number] != epoch.lineage) continue;
    if (them.installed[epoch.number] != id) {
      fail(describe(index) + " and " + describe(other) + " have different epochs " +
           std::to_string(epoch.number));
    }
  }
}

// Two members of different lineages never count on each other: then neither takes the
// other's messages. A member that is held may not know yet that it has been left.
void Schedule::check_lineages(int index) const {
  const Membership& one = *nodes_[at(index)].membership;
  for (int other = 0; other < mix_.size; ++other) {
    const Membership& two = *nodes_[at(other)].membership;
    if (!nodes_[at(other)].alive || one.epoch().lineage == two.epoch().lineage)
      continue;
    const auto is_left = [](const Membership& member) {
      return member.standing() == Membership::Standing::kHeld;
    };
    if (is_left(one) || is_left(two)) continue;
    if (one.epoch().rank_of(1000 + static_cast<Uid>(other)) &&
        two.epoch().rank_of(1000 + static_cast<Uid>(index))) {
      fail(describe(index) + " and " + describe(other) +
           " count on each other in different lineages");
    }
  }
}

void Schedule::check_rounds(int a, int b) const {
  const Node& one = nodes_[at(a)];
  const Node& two = nodes_[at(b)];
  for (const Node* node : {&one, &two}) {
    if (!node->alive) return;
    if (node->membership->standing() != Membership::Standing::kMember) return;
  }
  if (one.membership->epoch() != two.membership->epoch()) return;
  // Members of a lineage begin it in rounds of their own.
  if (one.membership->epoch().lineage != Epoch::kPrimary) return;
  for (std::size_t round = 0; round < std::min(one.rounds.size(), two.rounds.size());
       ++round) {
    if (one.rounds[round] != two.rounds[round]) {
      fail(describe(a) + " and " + describe(b) + " ran round " + std::to_string(round) +
           " in different epochs");
    }
  }
}

// --- At the end ----------------------------------------------------------------------

void Schedule::check_end() {
  for (int index = 0; index < mix_.size; ++index) {
    const Membership& membership = *nodes_[at(index)].membership;
    if (!nodes_[at(index)].alive) continue;
    note(describe(index) + " ends in epoch " +
         std::to_string(membership.epoch().number) + ", standing " +
         std::to_string(static_cast<int>(membership.standing())) +
         (membership.is_deciding() ? ", deciding" : "") + ", " +
         std::to_string(in_flight_) + " in flight");
    for (int other = 0; other < index; ++other) check_rounds(index, other);
  }
  if (minority_ == Minority::kSplits) {
    check_end_of_lineages();
  } else {
    check_end_of_primary();
  }
}

void Schedule::check_end_of_lineages() const {
  for (int index = 0; index < mix_.size; ++index) {
    if (nodes_[at(index)].alive) check_lineages(index);
  }
  check_is_over();
}

void Schedule::check_end_of_primary() const {
  const int newest = newest_node();
  const Epoch& epoch = nodes_[at(newest)].membership->epoch();
  const MemberSet present = present_in(epoch);
  if (!can_decide(epoch, present)) return;  // they wait for more, as they should
  check_is_over();
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    const bool is_member =
        node.membership->standing() != Membership::Standing::kExcluded;
    if (!is_member && node.alive && mix_.only_late) {
      fail(describe(index) + " was only late");
    }
    if (is_member && must_end(index) && node.membership->epoch() != epoch) {
      fail(describe(index) + " has another epoch than " + describe(newest));
    }
  }
  if (present.count() != epoch.size()) fail("the last epoch has members that are gone");
  for (const Member& a : epoch.members) {
    for (const Member& b : epoch.members) {
      if (links_.is_broken(index_of(a.uid), index_of(b.uid))) {
        fail("the last epoch has members without a link");
      }
    }
  }
}

void Schedule::check_is_over() const {
  if (!is_settled()) fail("no end");
  if (quiet_messages_ > kMessagesOfQuiet) fail("too many messages");
}

// Returns a living node that has installed the newest epoch.
int Schedule::newest_node() const {
  int newest = -1;
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    if (!node.alive) continue;
    if (newest == -1 || node.installed.size() > nodes_[at(newest)].installed.size()) {
      newest = index;
    }
  }
  return newest;
}

// Returns the members of an epoch that live and have not been excluded.
MemberSet Schedule::present_in(const Epoch& epoch) const {
  MemberSet present(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const Node& node = nodes_[at(index_of(epoch.members[at(rank)].uid))];
    const bool is_excluded =
        node.membership->standing() == Membership::Standing::kExcluded;
    if (node.alive && !is_excluded) present.insert(rank);
  }
  return present;
}

bool Schedule::is_settled() const {
  if (minority_ == Minority::kSplits) return has_split_for_good();
  if (in_flight_ > 0 || now_ < quiet_since_ + 3 * kBeat) return false;
  for (int index = 0; index < mix_.size; ++index) {
    const Node& node = nodes_[at(index)];
    const bool may_wait = now_ > quiet_since_ + kAlone && !must_end(index);
    if (node.alive && node.membership->is_deciding() && !may_wait) return false;
  }
  return true;
}

// Returns whether each living member goes on, with the primary or without, and counts
// on nobody who goes on otherwise.
bool Schedule::has_split_for_good() const {
  if (in_flight_ > 0 || now_ < quiet_since_ + 3 * kBeat) return false;
  return std::all_of(nodes_.begin(), nodes_.end(), [&](const Node& node) {
    return !node.alive ||
           (node.membership->standing() == Membership::Standing::kMember &&
            !node.membership->is_deciding() && shares_epoch(*node.membership));
  });
}

// Returns whether all living members of a member's epoch have this epoch.
bool Schedule::shares_epoch(const Membership& membership) const {
  const Epoch& epoch = membership.epoch();
  return std::all_of(epoch.members.begin(), epoch.members.end(),
                     [&](const Member& member) {
                       const Node& them = nodes_[at(index_of(member.uid))];
                       return !them.alive || them.membership->epoch() == epoch;
                     });
}

// Returns whether some member has links to enough others to decide.
bool Schedule::can_decide(const Epoch& epoch, const MemberSet& present) const {
  MemberSet dead(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const Node& node = nodes_[at(index_of(epoch.members[at(rank)].uid))];
    if (!node.alive && node.shows) dead.insert(rank);
  }
  for (int rank = present.lowest(); rank != -1; rank = present.lowest(rank + 1)) {
    MemberSet reached = present;
    for (int other = 0; other < epoch.size(); ++other) {
      if (links_.is_broken(index_of(epoch.members[at(rank)].uid),
                           index_of(epoch.members[at(other)].uid))) {
        reached.erase(other);
      }
    }
    if (is_primary(reached, dead)) return true;
  }
  return false;
}

// Returns whether a member of an old epoch can still learn what became of it: from
// another member that knows, or by a decision.
bool Schedule::must_end(int index) const {
  const Node& node = nodes_[at(index)];
  if (!node.alive) return false;
  const Epoch& epoch = node.membership->epoch();
  MemberSet present(epoch.size());
  for (int rank = 0; rank < epoch.size(); ++rank) {
    const int other = index_of(epoch.members[at(rank)].uid);
    if (!nodes_[at(other)].alive) continue;
    const Membership& them = *nodes_[at(other)].membership;
    const bool is_here = them.standing() != Membership::Standing::kExcluded &&
                         them.epoch().number == epoch.number;
    if (is_here) present.insert(rank);
    if (!is_here && !links_.is_broken(index, other)) return true;
  }
  return can_decide(epoch, present);
}

}  // namespace bluecomm::test
