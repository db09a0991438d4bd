#include "engine/membership/membership.h"

#include <memory>
#include <stdexcept>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using Standing = Membership::Standing;

// Members whose messages arrive at once, unless the test holds them.
struct MemberTalk {
  explicit MemberTalk(int size,
                      Membership::Minority minority = Membership::Minority::kHolds) {
    Epoch epoch;
    for (int i = 0; i < size; ++i) epoch.members.push_back({uid(i), 0});
    for (int i = 0; i < size; ++i) {
      members.push_back(std::make_unique<Membership>(epoch, uid(i), now,
                                                     MembershipTiming{}, minority));
    }
    runs.assign(members.size(), true);
  }

  static Uid uid(int index) { return 100 + static_cast<Uid>(index); }
  Membership& operator[](int index) {
    return *members[static_cast<std::size_t>(index)];
  }

  // Passes messages on until there are none. `drop` loses messages.
  template <typename Drop>
  void deliver(Drop drop) {
    for (bool any = true; any;) {
      any = false;
      for (std::size_t from = 0; from < members.size(); ++from) {
        for (const Membership::Post& post : members[from]->take_posts()) {
          const auto to = static_cast<std::size_t>(post.to - uid(0));
          if (!runs[from] || !runs[to] || drop(static_cast<int>(from), post)) continue;
          if (is_cut && side(static_cast<int>(from)) != side(static_cast<int>(to))) {
            continue;
          }
          any = true;
          members[to]->receive(uid(static_cast<int>(from)), post.message, now);
        }
      }
    }
  }
  void deliver() {
    deliver([](int, const Membership::Post&) { return false; });
  }

  // Lets time pass in the steps in which an engine ticks.
  void pass(MembershipTiming::Duration span) {
    const auto end = now + span;
    while (now < end) {
      now += MembershipTiming{}.gather;
      for (std::size_t i = 0; i < members.size(); ++i) {
        if (runs[i]) members[i]->tick(now);
      }
      deliver();
    }
  }

  // Separates the members into halves; each half finds the other one silent.
  void cut() {
    is_cut = true;
    const int size = static_cast<int>(members.size());
    for (int i = 0; i < size; ++i) {
      for (int other = 0; other < size; ++other) {
        if (side(i) != side(other)) {
          (*this)[i].observe(uid(other), Evidence::kSilent, now);
        }
      }
    }
  }
  bool side(int index) const {
    return 2 * static_cast<std::size_t>(index) >= members.size();
  }

  void kill(int index) { runs[static_cast<std::size_t>(index)] = false; }
  void tell_of_death(int index) {
    for (std::size_t i = 0; i < members.size(); ++i) {
      if (runs[i]) members[i]->observe(uid(index), Evidence::kDead, now);
    }
  }

  Membership::Time now{std::chrono::seconds(1)};
  std::vector<std::unique_ptr<Membership>> members;
  std::vector<bool> runs;
  bool is_cut = false;
};

constexpr MembershipTiming kTiming;

bool is(MembershipAction action, const Membership::Post& post) {
  return post.message.action == action;
}

TEST(membership, says_nothing_while_all_is_well) {
  MemberTalk talk(3);
  talk.pass(kTiming.patience);
  for (int i = 0; i < 3; ++i) {
    CHECK(!talk[i].is_deciding());
    CHECK(talk[i].take_posts().empty());
    CHECK(talk[i].standing() == Standing::kMember);
  }
}

TEST(membership, goes_on_without_the_dead) {
  MemberTalk talk(4);
  for (int i = 0; i < 3; ++i) CHECK(talk[i].start_round(static_cast<unsigned>(i)));
  talk.kill(3);
  talk.tell_of_death(3);
  talk.pass(4 * kTiming.gather);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(talk[i].epoch().number, 1U);
    CHECK(talk[i].epoch() == talk[0].epoch());
    CHECK(!talk[i].is_deciding());
  }
  // Member 2 had started round 2, the highest.
  CHECK_EQ(talk[0].epoch().first_round, 3 + Membership::kRoundsAhead);
  CHECK_EQ(talk[0].epoch_of(18).number, 0U);
  CHECK_EQ(talk[0].epoch_of(19).number, 1U);
}

TEST(membership, one_of_two_goes_on_after_a_proven_death_only) {
  MemberTalk talk(2);
  talk.kill(0);
  talk[1].observe(MemberTalk::uid(0), Evidence::kBroken, talk.now);
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[1].epoch().size(), 2);
  CHECK(talk[1].standing() == Standing::kHeld);
  talk.tell_of_death(0);
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[1].epoch().size(), 1);
  CHECK(talk[1].standing() == Standing::kMember);
}

TEST(membership, half_dies_at_once_in_one_epoch) {
  MemberTalk talk(8);
  for (const int index : {0, 1, 2, 3}) talk.kill(index);
  for (const int index : {0, 1, 2, 3}) talk.tell_of_death(index);
  talk.pass(4 * kTiming.gather);
  for (const int index : {4, 5, 6, 7}) {
    CHECK_EQ(talk[index].epoch().number, 1U);
    CHECK_EQ(talk[index].epoch().size(), 4);
  }
}

TEST(membership, whoever_answers_stays) {
  MemberTalk talk(3);
  talk[0].observe(MemberTalk::uid(2), Evidence::kStopped, talk.now);
  talk.pass(kTiming.patience);
  for (int i = 0; i < 3; ++i) {
    CHECK_EQ(talk[i].epoch().number, 1U);
    CHECK_EQ(talk[i].epoch().size(), 3);
    CHECK(!talk[i].is_deciding());
  }
}

TEST(membership, a_stopped_member_is_left_out_and_learns_of_it) {
  MemberTalk talk(3);
  talk.kill(2);
  talk[0].observe(MemberTalk::uid(2), Evidence::kStopped, talk.now);
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[0].epoch().size(), 2);
  talk.runs[2] = true;  // it thaws, and its links are silent
  talk[2].observe(MemberTalk::uid(0), Evidence::kSilent, talk.now);
  talk.pass(kTiming.repeat * 3);
  CHECK(talk[2].standing() == Standing::kExcluded);
  CHECK(!talk[2].start_round(5));
  CHECK_EQ(talk[0].epoch().number, 1U);
}

TEST(membership, the_excluded_tell_others_that_were_left_behind) {
  MemberTalk talk(5);
  for (const int index : {3, 4}) talk.kill(index);
  for (const int index : {3, 4, 2}) {
    talk.kill(index);
    talk[0].observe(MemberTalk::uid(index), Evidence::kStopped, talk.now);
    if (index != 3) talk.pass(kTiming.patience);
  }
  CHECK_EQ(talk[0].epoch().number, 2U);
  // Member 3 learns of the second decision only; then 4 reaches nobody but 3.
  for (const int index : {3, 4}) {
    talk.runs[static_cast<std::size_t>(index)] = true;
    talk[index].observe(MemberTalk::uid(0), Evidence::kSilent, talk.now);
    talk.pass(5 * kTiming.repeat);
    CHECK(talk[index].standing() == Standing::kExcluded);
    for (const int member : {0, 1}) talk.kill(member);
  }
}

TEST(membership, a_waiting_member_starts_no_round_of_the_next_epoch) {
  MemberTalk talk(3);
  CHECK(talk[1].start_round(9));
  talk.kill(2);
  talk.tell_of_death(2);
  talk.now += kTiming.gather;
  talk[0].tick(talk.now);
  talk.deliver(
      [](int, const auto& post) { return is(MembershipAction::kCommit, post); });
  CHECK_EQ(talk[0].epoch().number, 1U);
  CHECK_EQ(talk[1].epoch().number, 0U);
  const std::uint64_t first = talk[0].epoch().first_round;
  CHECK_EQ(first, 10 + Membership::kRoundsAhead);
  CHECK(talk[1].start_round(first - 1));
  CHECK(!talk[1].start_round(first));
  talk.pass(3 * kTiming.repeat);  // it asks
  CHECK(talk[1].start_round(first));
  CHECK_EQ(talk[1].epoch_of(first).number, 1U);
}

TEST(membership, another_member_finishes_what_a_dead_one_proposed) {
  MemberTalk talk(4);
  talk.kill(3);
  talk.tell_of_death(3);
  talk.now += kTiming.gather;
  talk[0].tick(talk.now);
  // Member 1 has accepted when 0 dies; nobody has heard a decision.
  talk.deliver([](int from, const auto& post) {
    const bool to_2 = post.to == MemberTalk::uid(2);
    return from != 0 ? is(MembershipAction::kAck, post)
                     : is(MembershipAction::kPrepare, post) && to_2;
  });
  talk.kill(0);
  talk.tell_of_death(0);
  talk.pass(kTiming.patience);
  for (const int index : {1, 2}) {
    CHECK_EQ(talk[index].epoch().number, 2U);
    CHECK_EQ(talk[index].epoch().size(), 2);
  }
}

TEST(membership, a_proposal_names_the_dead) {
  MemberTalk talk(3);
  talk[0].observe(MemberTalk::uid(1), Evidence::kStopped, talk.now);
  talk.deliver();
  talk.kill(2);
  talk[0].observe(MemberTalk::uid(2), Evidence::kDead, talk.now);
  talk.now += kTiming.gather;
  talk[0].tick(talk.now);
  int proposals = 0;
  talk.deliver([&](int, const Membership::Post& post) {
    if (!is(MembershipAction::kPrepare, post)) return false;
    ++proposals;
    CHECK_EQ(post.message.accusations.dead.lowest(), 2);
    return true;
  });
  CHECK(proposals > 0);
}

TEST(membership, late_words_of_the_dead_change_nothing) {
  // Members 0, 1 and 2 decide to go on without 4, and die. The decision reaches 4 only
  // after it has decided with 3, because all others are dead.
  MemberTalk talk(5);
  std::vector<MembershipMessage> late;
  const auto cut_off = [&](int from, const Membership::Post& post) {
    const bool to_4 = post.to == MemberTalk::uid(4);
    if (to_4 && is(MembershipAction::kCommit, post)) late.push_back(post.message);
    return to_4 || from == 4;
  };
  talk[0].observe(MemberTalk::uid(4), Evidence::kBroken, talk.now);
  talk.deliver(cut_off);
  // Member 3 has reported, but hears nothing more.
  talk[0].observe(MemberTalk::uid(3), Evidence::kStopped, talk.now);
  for (int ticks = 0; ticks < 120; ++ticks) {
    talk.now += kTiming.gather;
    talk[0].tick(talk.now);
    talk.deliver([&](int from, const Membership::Post& post) {
      return cut_off(from, post) || from == 3 || post.to == MemberTalk::uid(3);
    });
  }
  CHECK_EQ(talk[0].epoch().size(), 4);
  REQUIRE(!late.empty());

  for (const int index : {0, 1, 2}) talk.kill(index);
  // Member 4 learns of the deaths from the proposal of 3.
  for (const int index : {0, 1, 2}) {
    talk[3].observe(MemberTalk::uid(index), Evidence::kDead, talk.now);
  }
  for (int ticks = 0; ticks < 120; ++ticks) {
    talk.now += kTiming.gather;
    talk[3].tick(talk.now);
    talk.deliver(
        [](int, const auto& post) { return is(MembershipAction::kCommit, post); });
  }
  CHECK_EQ(talk[3].epoch().size(), 2);
  CHECK_EQ(talk[4].epoch().size(), 5);
  talk[4].receive(MemberTalk::uid(0), late.front(), talk.now);
  CHECK(talk[4].standing() == Standing::kMember);
  talk.pass(kTiming.patience);
  CHECK(talk[4].epoch() == talk[3].epoch());
}

TEST(membership, a_proposer_that_was_stopped_waits_anew) {
  MemberTalk talk(3);
  talk[0].observe(MemberTalk::uid(1), Evidence::kStopped, talk.now);
  // Member 2 answers; the answer of 1 is under way when 0 stops for long.
  std::vector<MembershipMessage> under_way;
  talk.deliver([&](int from, const auto& post) {
    if (from == 1) under_way.push_back(post.message);
    return from == 1;
  });
  REQUIRE(!under_way.empty());
  talk.now += 2 * kTiming.patience;
  talk[0].tick(talk.now);
  talk[0].receive(MemberTalk::uid(1), under_way.front(), talk.now);
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[0].epoch().size(), 3);
  CHECK(talk[1].standing() == Standing::kMember);
}

TEST(membership, ignores_messages_that_no_member_sends) {
  MemberTalk talk(3);
  talk[0].observe(MemberTalk::uid(2), Evidence::kDead, talk.now);
  const auto posts = talk[0].take_posts();
  REQUIRE(!posts.empty());
  MembershipMessage message = posts.front().message;
  talk[1].receive(MemberTalk::uid(2), message, talk.now);  // the sender is rank 0
  message.epoch += 1;
  talk[1].receive(MemberTalk::uid(0), message, talk.now);
  message.epoch -= 1;
  message.size = 2;
  talk[1].receive(MemberTalk::uid(0), message, talk.now);
  CHECK(!talk[1].is_deciding());
}

TEST(membership, is_among_its_first_members) {
  Epoch epoch;
  epoch.members = {{1, 0}};
  CHECK_THROWS(Membership(epoch, 2, {}), std::invalid_argument,
               "must include this process");
}

TEST(membership, a_side_that_splits_founds_a_lineage) {
  MemberTalk talk(4, Membership::Minority::kSplits);
  talk.cut();
  talk.pass(kTiming.split / 2);
  for (const int i : {0, 1}) {
    CHECK_EQ(talk[i].epoch().size(), 2);
    CHECK_EQ(talk[i].epoch().lineage, Epoch::kPrimary);
  }
  for (const int i : {2, 3}) CHECK(talk[i].standing() == Standing::kHeld);
  talk.pass(kTiming.split);
  for (const int i : {2, 3}) {
    CHECK(talk[i].standing() == Standing::kMember);
    CHECK_EQ(talk[i].epoch().number, 1U);
    CHECK(talk[i].epoch().lineage != Epoch::kPrimary);
    CHECK(talk[i].epoch() == talk[2].epoch());
    CHECK(talk[i].start_round(1000));
  }
  // Healed: neither side takes members of the other one.
  talk.is_cut = false;
  for (int i = 0; i < 4; ++i) talk[i].ask(talk.now);
  talk.deliver();
  talk.pass(kTiming.patience);
  for (const int i : {0, 2}) {
    CHECK_EQ(talk[i].epoch().size(), 2);
    CHECK(talk[i].epoch() == talk[i + 1].epoch());
    CHECK(talk[i].standing() == Standing::kMember);
  }
  CHECK(talk[0].epoch().lineage != talk[2].epoch().lineage);
}

TEST(membership, a_member_that_has_left_takes_no_part_in_decisions) {
  MemberTalk talk(3, Membership::Minority::kSplits);
  talk.runs = {false, false, true};
  for (const int i : {0, 1}) {
    talk[2].observe(MemberTalk::uid(i), Evidence::kSilent, talk.now);
  }
  talk.pass(kTiming.split);
  talk.pass(2 * kTiming.gather);  // it has left, and waits for nobody
  CHECK(talk[2].epoch().lineage != Epoch::kPrimary);
  CHECK_EQ(talk[2].epoch().size(), 1);
  talk.runs = {true, true, true};
  talk[0].observe(MemberTalk::uid(2), Evidence::kStopped, talk.now);
  talk.pass(2 * kTiming.patience);
  for (const int i : {0, 1}) {
    CHECK_EQ(talk[i].epoch().size(), 2);
    CHECK(!talk[i].epoch().rank_of(MemberTalk::uid(2)));
  }
  CHECK_EQ(talk[2].epoch().size(), 1);
}

TEST(membership, a_held_member_leaves_also_if_each_turn_is_late) {
  MemberTalk talk(3, Membership::Minority::kSplits);
  for (const int i : {0, 1}) {
    talk[2].observe(MemberTalk::uid(i), Evidence::kSilent, talk.now);
  }
  for (auto counted = MembershipTiming::Duration{0}; counted <= kTiming.split;
       counted += kTiming.jump) {
    CHECK(talk[2].epoch().lineage == Epoch::kPrimary);
    talk.now += 2 * kTiming.jump;
    talk[2].tick(talk.now);
  }
  talk.now += 2 * kTiming.jump;
  talk[2].tick(talk.now);
  CHECK(talk[2].epoch().lineage != Epoch::kPrimary);
}

TEST(membership, goes_on_without_a_member_that_has_left_an_earlier_epoch) {
  MemberTalk talk(3, Membership::Minority::kSplits);
  MembershipMessage claim;
  claim.action = MembershipAction::kClaim;
  claim.epoch = talk[0].epoch().id();
  claim.size = 3;
  claim.from = 1;
  claim.limit = static_cast<std::uint64_t>(Secession::Stage::kFounded);
  claim.proposal.survivors = MemberSet(3);
  claim.proposal.survivors.insert(1);
  claim.accusations = Accusations(3);
  talk.runs = {true, true, false};
  for (const int i : {0, 1}) {
    talk[i].observe(MemberTalk::uid(2), Evidence::kStopped, talk.now);
  }
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[0].epoch().size(), 2);
  talk.runs = {true, false, false};
  talk[0].receive(MemberTalk::uid(1), claim, talk.now);
  talk.pass(2 * kTiming.patience);
  CHECK_EQ(talk[0].epoch().size(), 1);
  CHECK_EQ(talk[0].epoch().lineage, Epoch::kPrimary);
}

TEST(membership, an_excluded_member_that_splits_goes_on_alone) {
  MemberTalk talk(3, Membership::Minority::kSplits);
  talk.runs = {true, true, false};
  for (const int i : {0, 1}) {
    talk[i].observe(MemberTalk::uid(2), Evidence::kStopped, talk.now);
  }
  talk.pass(kTiming.patience);
  CHECK_EQ(talk[0].epoch().size(), 2);
  talk.runs = {true, true, true};
  talk[2].ask(talk.now);
  talk.deliver();
  talk.pass(2 * kTiming.patience);
  CHECK(talk[2].standing() == Standing::kMember);
  CHECK_EQ(talk[2].epoch().size(), 1);
  CHECK(talk[2].epoch().lineage != Epoch::kPrimary);
}

}  // namespace
}  // namespace bluecomm::test
