#include "engine/membership/suspicions.h"

#include "tests/check.h"

namespace bluecomm::test {
namespace {

Accusations silence_of(int size, int rank) {
  Accusations said(size);
  said.silent.insert(rank);
  return said;
}

TEST(suspicions, one_witness_of_a_death_a_stop_or_a_broken_link_is_enough) {
  for (const auto evidence : {Evidence::kDead, Evidence::kStopped, Evidence::kBroken}) {
    Suspicions suspicions(4, 0);
    CHECK(suspicions.observe(2, evidence));
    CHECK(!suspicions.observe(2, evidence));
    CHECK(suspicions.accused().contains(2));
    CHECK_EQ(suspicions.accused().count(), 1);
    CHECK(suspicions.unreachable().contains(2));
  }
}

TEST(suspicions, silence_needs_two_witnesses) {
  Suspicions suspicions(4, 0);
  suspicions.observe(2, Evidence::kSilent);
  CHECK(suspicions.accused().empty());
  CHECK(suspicions.unreachable().contains(2));
  suspicions.listen(1, silence_of(4, 2));
  CHECK(suspicions.accused().contains(2));
  suspicions.listen(1, Accusations(4));
  CHECK(suspicions.accused().empty());
}

TEST(suspicions, silence_needs_one_witness_if_there_is_only_one) {
  Suspicions two(2, 0);
  two.observe(1, Evidence::kSilent);
  CHECK(two.accused().contains(1));
  Suspicions three(3, 0);
  three.observe(1, Evidence::kSilent);
  CHECK(three.accused().empty());
  three.observe(2, Evidence::kDead);
  CHECK(three.accused().contains(1));
}

TEST(suspicions, the_dead_accuse_nobody) {
  Suspicions suspicions(4, 0);
  Accusations said(4);
  said.broken.insert(1);
  suspicions.listen(3, said);
  CHECK(suspicions.accused().contains(1));
  suspicions.observe(3, Evidence::kDead);
  CHECK(!suspicions.accused().contains(1));
}

TEST(suspicions, a_message_withdraws_all_but_a_death) {
  Suspicions suspicions(4, 0);
  for (const auto evidence :
       {Evidence::kSilent, Evidence::kStopped, Evidence::kBroken}) {
    suspicions.observe(1, evidence);
  }
  CHECK(suspicions.hear(1));
  CHECK(!suspicions.hear(1));
  CHECK(suspicions.own().empty());
  suspicions.observe(1, Evidence::kDead);
  CHECK(!suspicions.hear(1));
  CHECK(suspicions.dead().contains(1));
}

TEST(suspicions, whoever_speaks_is_not_stopped) {
  Suspicions suspicions(4, 0);
  Accusations said(4);
  said.stopped.insert(1);
  said.broken.insert(1);
  suspicions.listen(3, said);
  CHECK(suspicions.unreachable().contains(1));
  CHECK(!suspicions.hear(1));
  CHECK(suspicions.unreachable().empty());
  CHECK(suspicions.accused().contains(1));  // without its link to 3
}

TEST(suspicions, a_member_may_be_accused_but_reaches_itself) {
  Suspicions suspicions(3, 1);
  CHECK(!suspicions.observe(1, Evidence::kDead));
  Accusations said(3);
  said.stopped.insert(1);
  suspicions.listen(0, said);
  CHECK(suspicions.accused().contains(1));
  CHECK(suspicions.unreachable().empty());
}

TEST(suspicions, deaths_and_broken_links_outlast_an_epoch) {
  Epoch base;
  base.members = {{10, 0}, {11, 0}, {12, 0}, {13, 0}};
  Suspicions suspicions(4, 1);
  suspicions.observe(0, Evidence::kDead);
  suspicions.observe(2, Evidence::kSilent);
  suspicions.observe(3, Evidence::kBroken);
  Epoch next = base;
  next.members = {{13, 0}, {11, 0}, {10, 0}};
  const Suspicions carried = suspicions.carry(base, next, 1);
  Accusations expected(3);
  expected.broken.insert(0);
  expected.dead.insert(2);
  CHECK(carried.own() == expected);
}

}  // namespace
}  // namespace bluecomm::test
