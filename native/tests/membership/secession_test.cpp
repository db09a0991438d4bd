#include "engine/membership/secession.h"

#include <initializer_list>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using Stage = Secession::Stage;

constexpr MembershipTiming kSeceding;
constexpr Secession::Time kBegin{std::chrono::seconds(1)};
const MemberSet kNobody(4);

MemberSet set_of(std::initializer_list<int> ranks) {
  MemberSet set(4);
  for (const int rank : ranks) set.insert(rank);
  return set;
}

TEST(secession, waits_for_those_that_can_be_reached) {
  Secession mine(4, 2, kSeceding, kBegin);
  CHECK(!mine.advance(set_of({0, 1}), kBegin));
  CHECK(mine.stage() == Stage::kGathering);
  mine.hear(3, Stage::kGathering, set_of({3}));
  CHECK(!mine.advance(set_of({0, 1}), kBegin));
  CHECK(mine.stage() == Stage::kClaiming);
  CHECK(mine.claim() == set_of({2, 3}));
  mine.hear(3, Stage::kClaiming, set_of({2, 3}));
  CHECK(mine.advance(set_of({0, 1}), kBegin));
}

TEST(secession, goes_on_without_those_that_do_not_leave) {
  Secession mine(4, 3, kSeceding, kBegin);
  CHECK(!mine.advance(kNobody, kBegin));
  CHECK(mine.advance(kNobody, kBegin + kSeceding.patience));
  CHECK(mine.claim() == set_of({3}));
}

TEST(secession, waits_for_the_claim_of_one_that_gathers_for_longer) {
  Secession mine(4, 1, kSeceding, kBegin);
  mine.hear(2, Stage::kGathering, set_of({2}));
  CHECK(!mine.advance(set_of({0, 3}), kBegin));
  CHECK(mine.claim() == set_of({1, 2}));
  CHECK(!mine.advance(set_of({0, 3}), kBegin + kSeceding.patience));
  mine.hear(2, Stage::kClaiming, set_of({1, 2}));
  CHECK(mine.advance(set_of({0, 3}), kBegin + kSeceding.patience));
  CHECK(mine.claim() == set_of({1, 2}));
}

TEST(secession, shrinks_to_what_all_claim) {
  Secession mine(4, 1, kSeceding, kBegin);
  for (const int rank : {2, 3}) mine.hear(rank, Stage::kGathering, set_of({rank}));
  CHECK(!mine.advance(set_of({0}), kBegin));
  CHECK(mine.claim() == set_of({1, 2, 3}));
  mine.hear(2, Stage::kClaiming, set_of({1, 2}));
  CHECK(!mine.advance(set_of({0}), kBegin) || mine.claim() == set_of({1, 2}));
  CHECK(mine.claim() == set_of({1, 2}));
}

TEST(secession, leaves_out_who_claims_others_only) {
  Secession mine(4, 1, kSeceding, kBegin);
  for (const int rank : {2, 3}) mine.hear(rank, Stage::kGathering, set_of({rank}));
  CHECK(!mine.advance(set_of({0}), kBegin));
  mine.hear(2, Stage::kClaiming, set_of({2, 3}));
  mine.hear(3, Stage::kClaiming, set_of({2, 3}));
  CHECK(mine.advance(set_of({0}), kBegin));
  CHECK(mine.claim() == set_of({1}));
}

TEST(secession, does_not_join_what_was_founded_without_its_present_claim) {
  Secession mine(4, 1, kSeceding, kBegin);
  for (const int rank : {2, 3}) mine.hear(rank, Stage::kGathering, set_of({rank}));
  CHECK(!mine.advance(set_of({0}), kBegin));
  // Member 3 is lost here, after it has claimed the same as this member.
  mine.hear(3, Stage::kClaiming, set_of({1, 2, 3}));
  CHECK(!mine.advance(set_of({0, 3}), kBegin));
  mine.hear(2, Stage::kFounded, set_of({1, 2, 3}));
  CHECK(mine.advance(set_of({0, 3}), kBegin));
  CHECK(mine.claim() == set_of({1}));
}

TEST(secession, ignores_claims_that_were_overtaken) {
  Secession mine(4, 1, kSeceding, kBegin);
  mine.hear(2, Stage::kClaiming, set_of({1, 2}));
  mine.hear(2, Stage::kGathering, set_of({2}));
  mine.hear(2, Stage::kClaiming, set_of({1, 2, 3}));
  mine.hear(3, Stage::kClaiming, set_of({1}));  // without itself
  CHECK(mine.advance(set_of({0, 3}), kBegin));
  CHECK(mine.claim() == set_of({1, 2}));
}

}  // namespace
}  // namespace bluecomm::test
