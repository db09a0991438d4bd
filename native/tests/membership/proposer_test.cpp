#include "engine/membership/proposer.h"

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using Step = Proposer::Step;

// One ballot of member 0 of four, and its clock.
struct ProposerTrial {
  explicit ProposerTrial(int size = 4)
      : proposer(size, timing), dead(size), unreachable(size), none(size) {
    proposer.gather(ballot, now);
  }

  Step advance() { return proposer.advance(now, dead, dead | unreachable); }
  void report(int from, std::uint64_t limit = 20) {
    proposer.take_report(from, limit, {}, {}, none);
  }
  void report_accepted(int from, Ballot accepted, std::uint64_t first_round) {
    proposer.take_report(from, 20, accepted, {MemberSet::all(none.size()), first_round},
                         none);
  }

  MembershipTiming timing;
  Proposer proposer;
  Proposer::Time now{};
  Ballot ballot{3, 0};
  MemberSet dead;
  MemberSet unreachable;
  MemberSet none;
};

TEST(voter, keeps_its_promise) {
  Voter voter;
  const Proposal proposal{MemberSet::all(2), 5};
  CHECK(!voter.accept({1, 0}, proposal));  // nobody has asked for a promise
  CHECK(voter.promise({2, 1}));
  CHECK(voter.promise({2, 1}));
  CHECK(!voter.promise({2, 0}));
  CHECK(!voter.accept({2, 0}, proposal));
  CHECK(!voter.accept({3, 0}, proposal));
  CHECK(!voter.accepted().is_set());
  CHECK(voter.accept({2, 1}, proposal));
  CHECK(voter.promise({3, 0}));
  CHECK(voter.accepted() == Ballot({2, 1}));
  CHECK(voter.proposal() == proposal);
}

TEST(proposer, proposes_those_who_report_and_the_highest_round) {
  ProposerTrial trial;
  trial.dead.insert(3);
  trial.report(0, 18);
  trial.report(1, 40);
  CHECK(trial.advance() == Step::kWait);
  trial.report(2, 16);
  CHECK(trial.advance() == Step::kWait);  // more deaths may be reported
  trial.now += trial.timing.gather;
  CHECK(trial.advance() == Step::kPrepare);
  CHECK_EQ(trial.proposer.proposal().survivors.count(), 3);
  CHECK_EQ(trial.proposer.proposal().first_round, 40U);
  CHECK(trial.proposer.announced() == trial.dead);
  trial.proposer.take_ack(0);
  trial.proposer.take_ack(1);
  CHECK(trial.advance() == Step::kWait);
  CHECK_EQ(trial.proposer.missing(trial.dead).lowest(), 2);
  trial.proposer.take_ack(2);
  CHECK(trial.advance() == Step::kCommit);
}

TEST(proposer, waits_briefly_for_the_suspected_and_longer_for_the_others) {
  ProposerTrial trial;
  trial.unreachable.insert(3);
  for (const int rank : {0, 1}) trial.report(rank);
  trial.now += trial.timing.answer;
  CHECK(trial.advance() == Step::kWait);  // for 2
  trial.report(2);
  CHECK(trial.advance() == Step::kPrepare);
  CHECK(!trial.proposer.proposal().survivors.contains(3));

  ProposerTrial silent;
  for (const int rank : {0, 1, 2}) silent.report(rank);
  silent.now += silent.timing.patience - MembershipTiming::Duration(1);
  CHECK(silent.advance() == Step::kWait);
  silent.now += MembershipTiming::Duration(1);
  CHECK(silent.advance() == Step::kPrepare);
  CHECK_EQ(silent.proposer.proposal().survivors.count(), 3);
}

TEST(proposer, keeps_whoever_answers) {
  ProposerTrial trial;
  trial.unreachable = MemberSet::all(4);
  for (const int rank : {0, 1, 2, 3}) trial.report(rank);
  trial.now += trial.timing.gather;
  CHECK(trial.advance() == Step::kPrepare);
  CHECK_EQ(trial.proposer.proposal().survivors.count(), 4);
}

TEST(proposer, proposes_nothing_without_enough_reports) {
  ProposerTrial trial(5);
  trial.report(0);
  trial.report(1);
  trial.now += 10 * trial.timing.patience;
  CHECK(trial.advance() == Step::kWait);
  for (const int rank : {2, 3}) trial.dead.insert(rank);
  CHECK(trial.advance() == Step::kWait);  // 4 may have gone on with 2 and 3
  trial.dead.insert(4);
  CHECK(trial.advance() == Step::kPrepare);
}

TEST(proposer, repeats_the_accepted_proposal_of_the_highest_ballot) {
  ProposerTrial trial;
  trial.report_accepted(0, {1, 3}, 111);
  trial.report_accepted(1, {2, 1}, 222);
  trial.report_accepted(2, {1, 0}, 333);
  trial.report(3);
  trial.now += trial.timing.gather;
  CHECK(trial.advance() == Step::kPrepare);
  CHECK_EQ(trial.proposer.proposal().first_round, 222U);
}

TEST(proposer, announces_each_death_that_its_decision_counts_on) {
  ProposerTrial trial;
  for (const int rank : {0, 1, 2, 3}) trial.report(rank);
  trial.now += trial.timing.gather;
  CHECK(trial.advance() == Step::kPrepare);
  trial.proposer.take_ack(0);
  for (const int rank : {1, 2, 3}) trial.dead.insert(rank);
  CHECK(trial.advance() == Step::kRestart);
}

TEST(proposer, gives_up_without_enough_acks) {
  ProposerTrial trial;
  for (const int rank : {0, 1, 2, 3}) trial.report(rank);
  trial.now += trial.timing.gather;
  CHECK(trial.advance() == Step::kPrepare);
  trial.proposer.take_ack(0);
  trial.now += trial.timing.patience;
  CHECK(trial.advance() == Step::kGiveUp);
}

TEST(proposer, does_not_count_its_own_absence_as_that_of_others) {
  ProposerTrial trial;
  for (const int rank : {0, 1, 2}) trial.report(rank);
  trial.now += trial.timing.patience;
  trial.proposer.wait_anew(trial.now);
  CHECK(trial.advance() == Step::kWait);
}

TEST(fully_linked, drops_the_member_with_most_broken_links) {
  std::vector<MemberSet> broken(4, MemberSet(4));
  const MemberSet all = MemberSet::all(4);
  CHECK(fully_linked(all, broken) == all);
  broken[1].insert(3);  // one end is enough, and the higher rank goes
  MemberSet without_3 = all;
  without_3.erase(3);
  CHECK(fully_linked(all, broken) == without_3);
  broken[0].insert(1);
  MemberSet without_1 = all;
  without_1.erase(1);
  CHECK(fully_linked(all, broken) == without_1);
}

}  // namespace
}  // namespace bluecomm::test
