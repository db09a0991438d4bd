// The queue of NCCL's calls: what fails when a rank is lost, a call fails or the device
// does not finish, and how communicators and the queue end.
#include <string>
#include <vector>

#include "device/nccl_queue.h"
#include "tests/check.h"
#include "tests/device/nccl_queues.h"

namespace bluecomm::test {
namespace {

using device::NcclCall;
using device::NcclGroup;
using device::NcclWork;

TEST(nccl_queue_endings, fails_calls_that_wait_for_their_number_when_a_rank_is_lost) {
  Queues queues;
  const auto waiting = queues.make(1, 3);
  CHECK(!waiting->poll().has_value());
  queues.of(1).note_lost(0, "rank 0 was killed");
  const Status failed = awaited_outcome(*waiting);
  CHECK(failed.code == Code::kPeerLost);
  CHECK_EQ(failed.rank, 0);
  CHECK(waiting->has_ended());
  CHECK(awaited_outcome(*queues.make(1, 3)).code == Code::kPeerLost);
}

TEST(nccl_queue_endings, gives_no_number_after_a_loss_and_says_why) {
  Queues queues;
  const CallOfRanks calls = queues.make_all(3);
  queues.of(0).note_lost(1, "rank 1 was killed");
  try {
    Queues::number(calls);
    CHECK(false);
  } catch (const TicketFailure& failure) {
    CHECK(failure.status().code == Code::kPeerLost);
    CHECK_EQ(failure.status().rank, 1);
  }
}

TEST(nccl_queue_endings, says_once_what_follows_from_a_failure_of_another_rank) {
  Queues queues;
  queues.make_all(1);
  queues.of(0).note_lost(1, "rank 1 was killed");
  const Status told = queues.failure_of(0, {0, 1}).value_or(Status{});
  CHECK(told.text.starts_with("rank 1 was killed; NCCL's communicator was aborted"));
  queues.of(1).note_failed_ticket(Queues::group_of(1, {0, 1}).id,
                                  {told.code, "allreduce 'x': " + told.text, 2});
  const Status heard = queues.failure_of(1, {0, 1}).value_or(Status{});
  CHECK(heard.text == "allreduce 'x': " + told.text);
}

TEST(nccl_queue_endings, aborts_when_an_issued_call_fails_on_another_rank) {
  Queues queues;
  queues.issue(1);
  imitation->set_finishes(false);
  const CallOfRanks calls = queues.make_all(2);
  Queues::take(calls, Queues::number(calls));
  CHECK(awaited_outcome(*calls[0]).ok());
  CHECK(!calls[0]->has_ended());
  const std::uint64_t group = Queues::group_of(0, {0, 1}).id;
  queues.of(0).note_failed_ticket(group, {Code::kMismatch, "another call differs", 1});
  CHECK(!queues.failure_of(0, {0, 1}).has_value());
  queues.of(0).note_failed_ticket(group, {Code::kInternal, "NCCL failed on rank 1", 1});
  await([&] { return calls[0]->has_ended(); });
  CHECK(imitation->has_called(0, "abort"));
  CHECK(calls[0]->follow(nullptr)->text.starts_with("NCCL failed on rank 1"));
}

TEST(nccl_queue_endings, goes_on_after_a_deadline_before_a_call_can_have_a_number) {
  Queues queues;
  const Status late{Code::kTimedOut, "rank 1 has not called in time", 1};
  for (const int rank : {0, 1}) {
    const auto waiting = queues.make(rank, 3);
    waiting->fail(late);
    CHECK(waiting->poll()->code == Code::kTimedOut);
    CHECK(!queues.failure_of(rank, {0, 1}).has_value());
  }
  queues.issue(4);
}

TEST(nccl_queue_endings, aborts_after_a_deadline_if_the_call_may_have_a_number) {
  const Status late{Code::kTimedOut, "rank 1 has not answered in time", 1};
  for (const int rank : {0, 1}) {
    Queues queues;
    const CallOfRanks calls = queues.make_all(3);
    Queues::propose(calls);
    calls[static_cast<std::size_t>(rank)]->fail(late);
    CHECK(queues.failure_of(rank, {0, 1}).has_value());
  }
}

TEST(nccl_queue_endings, aborts_after_another_failure_of_a_call_without_a_number) {
  Queues queues;
  queues.make(0, 3)->fail({Code::kInternal, "rank 1 has failed", 1});
  CHECK(queues.failure_of(0, {0, 1}).has_value());
}

TEST(nccl_queue_endings, finishes_issued_calls_of_a_group_that_is_freed) {
  Queues queues;
  imitation->set_finishes(false);
  const CallOfRanks issued = queues.make_all(1);
  Queues::take(issued, Queues::number(issued));
  for (const auto& call : issued) CHECK(awaited_outcome(*call).ok());
  queues.make(1, 2)->fail({Code::kFreed, "rank 1 has freed the process set", 1});
  const NcclGroup group = Queues::group_of(1, {0, 1});
  CHECK(!queues.failure_of(1, group.ranks).has_value());
  queues.of(1).forget_group(group.id);
  imitation->set_finishes(true);
  await([&] { return imitation->has_called(1, "abort"); });
  const std::vector<std::string> expected{"allreduce 1", "finalize", "abort"};
  CHECK(imitation->calls(1) == expected);
  CHECK(!issued[1]->follow(nullptr).has_value());
}

// Has NCCL carry out a call, and report on rank 0 that it has lost rank 1.
void lose_rank_1(const CallOfRanks& calls) {
  imitation->set_finishes(false);
  Queues::take(calls, Queues::number(calls));
  for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
  imitation->lose_another(0);
}

TEST(nccl_queue_endings, names_the_member_that_has_freed_the_group_of_a_lost_rank) {
  const Status freed{Code::kFreed, "rank 1 has freed the process set", 1};
  for (const bool is_told_before : {true, false}) {
    Queues queues;
    const NcclGroup group = Queues::group_of(0, {0, 1});
    const CallOfRanks calls = queues.make_all(1);
    if (is_told_before) queues.of(0).note_removed_group(group.id, freed);
    CHECK(!queues.failure_of(0, group.ranks).has_value());
    lose_rank_1(calls);
    await([&] { return imitation->errors() > 0; });
    if (!is_told_before) queues.of(0).note_removed_group(group.id, freed);
    await([&] { return calls[0]->has_ended(); });
    const Status failed = queues.failure_of(0, group.ranks).value_or(Status{});
    CHECK(failed.code == Code::kFreed);
    CHECK(failed.text.starts_with(freed.text));
    CHECK_EQ(failed.rank, 1);
    CHECK(imitation->has_called(0, "abort"));
  }
}

TEST(nccl_queue_endings, takes_the_reason_for_a_lost_rank_from_the_engine) {
  Queues queues;
  const CallOfRanks calls = queues.make_all(1);
  lose_rank_1(calls);
  await([&] { return imitation->errors() > 0; });
  queues.of(0).note_lost(1, "rank 1 was killed");
  await([&] { return calls[0]->has_ended(); });
  CHECK(queues.failure_of(0, {0, 1})->text.starts_with("rank 1 was killed"));
}

TEST(nccl_queue_endings, fails_at_last_if_nobody_knows_why_a_rank_is_lost) {
  for (const bool is_closed : {true, false}) {
    Queues queues;
    const CallOfRanks calls = queues.make_all(1);
    lose_rank_1(calls);
    if (is_closed) queues.of(0).close(kDeadline);
    await([&] { return calls[0]->has_ended(); });
    CHECK(calls[0]->poll()->code == Code::kPeerLost);
    CHECK(imitation->has_called(0, "abort"));
  }
}

TEST(nccl_queue_endings, takes_the_reason_of_a_call_that_NCCL_does_not_take) {
  Queues queues;
  queues.issue(1);
  imitation->lose_another(0);
  const CallOfRanks calls = queues.make_all(2);
  Queues::take(calls, Queues::number(calls));
  await([&] { return imitation->errors() > 0; });
  const std::uint64_t group = Queues::group_of(0, {0, 1}).id;
  queues.of(0).note_removed_group(group, {Code::kFreed, "rank 1 has freed it", 1});
  CHECK(awaited_outcome(*calls[0]).code == Code::kFreed);
  CHECK(awaited_outcome(*calls[1]).ok());
}

TEST(nccl_queue_endings, goes_on_with_the_calls_of_groups_that_have_not_failed) {
  Queues queues(3);
  imitation->set_finishes(false);
  const CallOfRanks failing = queues.make_among({0, 1, 2}, 1);
  Queues::take(failing, Queues::number(failing));
  for (const auto& call : failing) CHECK(awaited_outcome(*call).ok());
  const CallOfRanks next = queues.make_among({0, 1}, 2);
  Queues::take(next, Queues::number(next));
  queues.of(0).note_lost(2, "rank 2 was killed");
  await([&] { return failing[0]->has_ended() && next[0]->has_ended(); });
  CHECK(!failing[0]->poll()->ok());
  CHECK(next[0]->poll()->ok());
  CHECK(!next[0]->follow(nullptr).has_value());
  CHECK(queues.failure_of(0, {0, 1, 2}).has_value());
  CHECK(!queues.failure_of(0, {0, 1}).has_value());
}

TEST(nccl_queue_endings, can_keep_operations_open_until_the_device_has_finished) {
  Queues queues(2, true);
  imitation->set_finishes(false);
  const CallOfRanks calls = queues.make_all(1);
  Queues::take(calls, Queues::number(calls));
  for (const int rank : {0, 1}) {
    await([&] { return imitation->has_called(rank, "allreduce 1"); });
  }
  // Several looks of the thread at the device.
  const std::size_t before = imitation->queries();
  await([&] { return imitation->queries() > before + 4; });
  CHECK(!calls[0]->poll().has_value());
  queues.of(1).note_lost(0, "rank 0 was killed");  // the abort lets the device go on
  CHECK(awaited_outcome(*calls[1]).code == Code::kPeerLost);
  CHECK(awaited_outcome(*calls[0]).ok());
  CHECK(calls[0]->has_ended());
}

TEST(nccl_queue_endings,
     aborts_the_communicator_of_a_freed_group_that_fails_elsewhere) {
  Queues queues;
  imitation->set_finishes(false);
  const CallOfRanks calls = queues.make_all(1);
  Queues::take(calls, Queues::number(calls));
  for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
  const std::uint64_t group = Queues::group_of(0, {0, 1}).id;
  queues.of(0).forget_group(group);
  CHECK(!imitation->has_called(0, "finalize"));  // the device works
  queues.of(0).note_failed_ticket(group, {Code::kInternal, "NCCL failed on rank 1", 1});
  await([&] { return calls[0]->has_ended(); });
  CHECK(!imitation->has_called(0, "finalize"));
  CHECK(imitation->has_called(0, "abort"));
}

TEST(nccl_queue_endings, aborts_when_the_device_does_not_finish_a_call) {
  Queues queues;
  imitation->set_finishes(false);
  const auto call = queues.make(0, 2, std::chrono::milliseconds(1));
  const CallOfRanks calls{call, queues.make(1, 2)};
  Queues::take(calls, Queues::number(calls));
  await([&] { return call->has_ended(); });
  CHECK(call->poll()->code == Code::kTimedOut);
}

TEST(nccl_queue_endings, ends_in_order_if_nothing_is_left_to_do) {
  Queues queues;
  queues.issue(1);
  queues.of(1).close(kDeadline);
  const std::vector<std::string> expected{"allreduce 1", "finalize", "abort"};
  CHECK(imitation->calls(1) == expected);
}

TEST(nccl_queue_endings, aborts_at_the_end_if_other_ranks_may_have_issued_a_call) {
  Queues queues;
  queues.issue(1);
  const CallOfRanks second = queues.make_all(2);
  const CallOfRanks third = queues.make_all(3);
  Queues::number(second);
  third[1]->take_answer(Queues::number(third));  // after the second, which is missing
  queues.of(1).close(kDeadline);
  const std::vector<std::string> expected{"allreduce 1", "abort"};
  CHECK(imitation->calls(1) == expected);
  for (const auto& call : {second[1], third[1]}) {
    CHECK(awaited_outcome(*call).code == Code::kClosed);
  }
}

TEST(nccl_queue_endings, ends_in_order_if_no_rank_can_have_issued_the_calls_left) {
  Queues queues;
  queues.issue(1);
  const CallOfRanks second = queues.make_all(2);
  queues.of(1).close(kDeadline);
  const std::vector<std::string> expected{"allreduce 1", "finalize", "abort"};
  CHECK(imitation->calls(1) == expected);
  CHECK(awaited_outcome(*second[1]).code == Code::kClosed);
  second[0]->fail({Code::kClosed, "rank 1 shut down", 1});
  CHECK(!queues.failure_of(0, {0, 1}).has_value());
}

TEST(nccl_queue_endings, ends_the_communicator_of_a_group_that_is_forgotten) {
  Queues queues(3);
  const CallOfRanks calls = queues.make_among({0, 1}, 1);
  Queues::take(calls, Queues::number(calls));
  for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
  const NcclGroup group = Queues::group_of(1, {0, 1});
  queues.of(1).forget_group(group.id);
  queues.of(1).forget_group(group.id + 1);  // one without calls
  await([&] { return imitation->has_called(1, "finalize"); });
  CHECK(!queues.failure_of(1, {0, 2}).has_value());
}

TEST(nccl_queue_endings, ends_while_it_is_suspended) {
  Queues queues;
  queues.issue(1);
  queues.of(0).suspend();
  queues.of(0).close(kDeadline);
  CHECK(imitation->has_called(0, "finalize"));
}

}  // namespace
}  // namespace bluecomm::test
