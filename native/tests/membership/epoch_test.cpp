#include "engine/membership/epoch.h"

#include <utility>
#include <vector>

#include "engine/membership/primary.h"
#include "tests/check.h"

namespace bluecomm::test {
namespace {

Epoch epoch_of_uids(const std::vector<Uid>& uids) {
  Epoch epoch;
  for (const Uid uid : uids) epoch.members.push_back({uid, uid / 10});
  return epoch;
}

MemberSet set_of(int size, const std::vector<int>& ranks) {
  MemberSet set(size);
  for (const int rank : ranks) set.insert(rank);
  return set;
}

std::vector<Uid> uids_of(const Epoch& epoch) {
  std::vector<Uid> uids;
  for (const Member& member : epoch.members) uids.push_back(member.uid);
  return uids;
}

TEST(member_set, holds_ranks) {
  for (const int size : {1, 8, 64, 65, 200}) {
    MemberSet set(size);
    CHECK(set.empty());
    CHECK_EQ(set.size(), size);
    set.insert(size - 1);
    CHECK_EQ(set.lowest(), size - 1);
    CHECK_EQ(set.count(), 1);
    const MemberSet all = MemberSet::all(size);
    CHECK_EQ(all.count(), size);
    CHECK_EQ((all - set).count(), size - 1);
    CHECK((set | all) == all);
    CHECK(!(all - set).contains(size - 1));
    set.erase(size - 1);
    CHECK(set == MemberSet(size));
    CHECK_EQ(all.lowest(size), -1);
  }
}

TEST(epoch, survivors_keep_their_ranks_if_they_can) {
  const Epoch base = epoch_of_uids({10, 11, 12, 13, 14});
  const auto after = [&](const std::vector<int>& survivors) {
    return uids_of(next_epoch(base, set_of(5, survivors), 7));
  };
  CHECK(after({0, 1, 2, 3}) == std::vector<Uid>({10, 11, 12, 13}));
  CHECK(after({0, 2, 3, 4}) == std::vector<Uid>({10, 14, 12, 13}));
  CHECK(after({2, 3, 4}) == std::vector<Uid>({13, 14, 12}));
  CHECK(after({4}) == std::vector<Uid>({14}));
  const Epoch next = next_epoch(base, set_of(5, {1, 4}), 7);
  CHECK_EQ(next.number, base.number + 1);
  CHECK_EQ(next.first_round, 7U);
  CHECK(next.rank_of(14) == 0);
  CHECK(next.rank_of(11) == 1);
  CHECK(!next.rank_of(10).has_value());
}

TEST(epoch, ids_differ_with_all_that_members_agree_on) {
  const Epoch base = epoch_of_uids({10, 11});
  CHECK_EQ(base.id(), Epoch(base).id());
  for (void (*change)(Epoch&) : {
           +[](Epoch& one) { ++one.number; },
           +[](Epoch& one) { one.lineage = 5; },
           +[](Epoch& one) { one.first_round = 5; },
           +[](Epoch& one) { one.members[0].uid = 5; },
           +[](Epoch& one) { one.members[0].host = 5; },
           +[](Epoch& one) { std::swap(one.members[0], one.members[1]); },
           +[](Epoch& one) { one.members.pop_back(); },
       }) {
    Epoch other = base;
    change(other);
    CHECK(other.id() != base.id());
  }
}

TEST(primary, needs_more_than_half_or_the_half_with_rank_0) {
  const MemberSet none(4);
  CHECK(is_primary(set_of(4, {1, 2, 3}), none));
  CHECK(is_primary(set_of(4, {0, 3}), none));
  CHECK(!is_primary(set_of(4, {1, 2}), none));
  CHECK(!is_primary(set_of(4, {0}), none));
  CHECK(!is_primary(none, none));
  CHECK(is_primary(set_of(5, {2, 3, 4}), MemberSet(5)));
  CHECK(!is_primary(set_of(5, {0, 1}), MemberSet(5)));
}

TEST(primary, is_everybody_who_is_left) {
  CHECK(is_primary(set_of(2, {1}), set_of(2, {0})));
  CHECK(is_primary(set_of(8, {7}), set_of(8, {0, 1, 2, 3, 4, 5, 6})));
  // Member 2 may have gone on with 0 and 1 before these died.
  CHECK(!is_primary(set_of(5, {3, 4}), set_of(5, {0, 1})));
  // The dead that have answered count once.
  CHECK(!is_primary(set_of(5, {0, 4}), set_of(5, {0, 1})));
}

}  // namespace
}  // namespace bluecomm::test
