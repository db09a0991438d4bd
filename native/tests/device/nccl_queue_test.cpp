// The queue of NCCL's calls: the order of calls, the numbers and messages that it
// refuses, and how it is suspended. Its endings have tests of their own.
#include "device/nccl_queue.h"

#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/device/nccl_queues.h"

namespace bluecomm::test {
namespace {

using device::NcclCall;
using device::NcclGroup;
using device::NcclWork;

TEST(nccl_queue, issues_calls_in_the_order_of_their_numbers) {
  Queues queues;
  const CallOfRanks first = queues.make_all(1);
  const CallOfRanks second = queues.make_all(2);
  const AnswerBytes one = Queues::number(first);
  const AnswerBytes two = Queues::number(second);
  Queues::take(second, two);
  Queues::take(first, one);
  for (const auto& call : {first[0], first[1], second[0], second[1]}) {
    CHECK(awaited_outcome(*call).ok());
    await([&] { return call->has_ended(); });
    CHECK(!call->follow(nullptr).has_value());
  }
  const std::vector<std::string> expected{"allreduce 1", "allreduce 2"};
  for (const int rank : {0, 1}) CHECK(imitation->calls(rank) == expected);
}

TEST(nccl_queue, issues_calls_of_groups_in_one_order_on_all_ranks) {
  Queues queues(3);
  const CallOfRanks all = queues.make_among({0, 1, 2}, 1);
  const CallOfRanks pair = queues.make_among({0, 1}, 2);
  std::vector<std::uint64_t> of_all{all[1]->propose()};
  const std::vector<std::uint64_t> of_pair{pair[1]->propose()};
  Queues::take(pair, Queues::decide(pair, of_pair));
  CHECK(awaited_outcome(*pair[0]).ok());
  // Rank 1 does not know yet that the other call comes later.
  CHECK(!pair[1]->poll().has_value());
  of_all.push_back(all[2]->propose());
  Queues::take(all, Queues::decide(all, of_all));
  for (const CallOfRanks& calls : {all, pair}) {
    for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
  }
  const std::vector<std::string> expected{"allreduce 2", "allreduce 1"};
  for (const int rank : {0, 1}) CHECK(imitation->calls(rank) == expected);
}

TEST(nccl_queue, issues_what_follows_a_call_that_fails_after_its_proposal) {
  Queues queues(3);
  const CallOfRanks failing = queues.make_among({0, 1}, 1);
  failing[1]->propose();
  const CallOfRanks next = queues.make_among({1, 2}, 2);
  Queues::take(next, Queues::number(next));
  CHECK(!next[0]->poll().has_value());
  failing[1]->fail({Code::kMismatch, "the calls differ", 0});
  CHECK(awaited_outcome(*next[0]).ok());
}

TEST(nccl_queue, fails_the_group_whose_first_member_gives_a_number_twice) {
  Queues queues;
  const CallOfRanks first = queues.make_all(1);
  const CallOfRanks second = queues.make_all(2);
  Queues::propose(first);
  const AnswerBytes answer = Queues::decide(second, Queues::propose(second));
  first[1]->take_answer(answer);
  second[1]->take_answer(answer);
  const Status failed = awaited_outcome(*second[1]);
  CHECK(failed.code == Code::kInternal);
  CHECK(failed.text.starts_with("rank 0 gave two calls the number 4, which breaks"));
  CHECK_EQ(failed.rank, 0);
  CHECK(!awaited_outcome(*first[1]).ok());
  CHECK(!awaited_outcome(*queues.make(1, 3)).ok());
}

TEST(nccl_queue, fails_the_group_of_a_call_with_an_impossible_number) {
  for (const std::uint64_t time : {std::uint64_t{2}, UINT64_MAX}) {
    Queues queues;
    const CallOfRanks calls = queues.make_all(1);
    AnswerBytes answer = Queues::number(calls);
    std::memcpy(answer.data(), &time, sizeof time);
    calls[1]->take_answer(answer);
    const Status failed = awaited_outcome(*calls[1]);
    CHECK(failed.text.starts_with("rank 0 gave a call the number " +
                                  std::to_string(time) + ", which breaks"));
    CHECK(queues.failure_of(1, {0, 1}).has_value());
  }
}

TEST(nccl_queue, gives_no_number_after_an_impossible_proposal) {
  Queues queues(3);
  const CallOfRanks calls = queues.make_among({0, 1, 2}, 1);
  try {
    Queues::decide(calls, {2, UINT64_MAX});
    CHECK(false);
  } catch (const TicketFailure& failure) {
    CHECK(failure.status().text.starts_with(
        "rank 2 proposed the time 18446744073709551615, which breaks"));
    CHECK_EQ(failure.status().rank, 2);
  }
  // The clock goes on.
  const CallOfRanks next = queues.make_among({0, 1}, 1);
  Queues::take(next, Queues::number(next));
  for (const auto& call : next) CHECK(awaited_outcome(*call).ok());
}

TEST(nccl_queue, exchanges_messages_with_ranks_that_expect_them) {
  Queues queues;
  const CallOfRanks calls{queues.make_exchange(0, {{1, 0, 8}}, {}),
                          queues.make_exchange(1, {}, {{0, 0, 8}})};
  Queues::take(calls, Queues::number(calls));
  for (const auto& call : calls) CHECK(awaited_outcome(*call).ok());
  CHECK(imitation->has_called(0, "send 8 to 1"));
  CHECK(imitation->has_called(1, "receive 8 from 0"));
}

TEST(nccl_queue, counts_messages_with_ranks_of_the_world) {
  Queues queues(3);
  NcclWork work;
  work.function = NcclWork::Function::kExchange;
  work.sends = {{0, 0, 8}, {1, 0, 16}};  // one to this rank itself
  work.receives = {{0, 0, 8}, {1, 0, 24}};
  const auto call =
      queues.of(1).make_call(Queues::group_of(1, {1, 2}), work, nullptr, kDeadline);
  const std::vector<LibraryMessage> messages = call->messages();
  REQUIRE(messages.size() == 2);
  CHECK(messages[0].peer == 2 && messages[0].is_sent && messages[0].nbytes == 16);
  CHECK(messages[1].peer == 2 && !messages[1].is_sent && messages[1].nbytes == 24);
}

TEST(nccl_queue, gives_no_number_to_messages_that_nobody_expects) {
  Queues queues;
  const auto error_of = [](const CallOfRanks& calls) -> std::string {
    try {
      Queues::number(calls);
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of(
            {queues.make_exchange(0, {{1, 0, 8}}, {}), queues.make_exchange(1, {}, {})})
            .starts_with("rank 0 sends to rank 1, which does not receive from it"));
  CHECK(error_of(
            {queues.make_exchange(0, {}, {}), queues.make_exchange(1, {}, {{0, 0, 8}})})
            .starts_with("rank 1 receives from rank 0, which does not send to it"));
}

TEST(nccl_queue, gives_no_number_to_messages_of_another_size_than_expected) {
  Queues queues;
  const auto error_of = [&](std::vector<device::NcclMessage> sends,
                            std::vector<device::NcclMessage> receives) -> std::string {
    try {
      Queues::number({queues.make_exchange(0, std::move(sends), {}, true),
                      queues.make_exchange(1, {}, std::move(receives), true)});
    } catch (const std::invalid_argument& error) {
      return error.what();
    }
    return "";
  };
  CHECK(error_of({{1, 0, 8}}, {{0, 0, 12}})
            .starts_with("rank 0 sends 8 bytes to rank 1, which expects 12 bytes"));
  CHECK(error_of({}, {{0, 0, 12}})
            .starts_with("rank 0 sends 0 bytes to rank 1, which expects 12 bytes"));
  CHECK_EQ(error_of({{1, 0, 8}}, {{0, 0, 8}}), "");
}

TEST(nccl_queue, repeats_a_call_among_the_members_that_are_left) {
  Queues queues(3);
  NcclWork work;
  work.function = NcclWork::Function::kExchange;
  work.sends = {{0, 0, 8}, {1, 0, 16}};
  work.receives = {{0, 0, 8}};
  const auto draft =
      queues.of(2).make_call(Queues::group_of(2, {0, 1, 2}), work, nullptr, kDeadline);
  queues.of(2).note_lost(0, "rank 0 was killed");
  const NcclGroup left = Queues::group_of(2, {1, 2});
  const auto repeated = queues.of(2).enter(*draft, left);
  CHECK(!repeated->poll().has_value());
  CHECK_EQ(repeated->work().sends.size(), 1U);
  CHECK_EQ(repeated->work().sends[0].peer, 0);
  CHECK_EQ(repeated->work().sends[0].nbytes, 16U);
  CHECK(repeated->work().receives.empty());
  // The draft's group has failed.
  const auto late = queues.of(2).enter(*draft, Queues::group_of(2, {0, 1, 2}));
  CHECK(awaited_outcome(*late).code == Code::kPeerLost);
}

TEST(nccl_queue, leaves_out_reductions_to_members_that_are_gone) {
  NcclWork work;
  work.function = NcclWork::Function::kReduce;
  work.reductions = {
      {.root = 0, .count = 1}, {.root = 1, .count = 2}, {.root = 2, .count = 3}};
  const NcclGroup all{.id = 1, .rank = 0, .ranks = {4, 5, 6}};
  const NcclGroup left{.id = 2, .rank = 0, .ranks = {4, 6}};
  const NcclWork found = device::renumber(work, all, left);
  CHECK_EQ(found.reductions.size(), 2U);
  CHECK_EQ(found.reductions[1].root, 1);
  CHECK_EQ(found.reductions[1].count, 3U);
}

TEST(nccl_queue, stands_still_while_it_is_suspended) {
  Queues queues;
  queues.issue(1);
  imitation->set_finishes(false);
  const CallOfRanks calls = queues.make_all(2);
  Queues::take(calls, Queues::number(calls));
  for (const int rank : {0, 1}) CHECK(awaited_outcome(*calls[rank]).ok());
  for (const int rank : {0, 1}) queues.of(rank).suspend();
  const std::size_t before = imitation->queries();
  const CallOfRanks next = queues.make_all(3);
  Queues::take(next, Queues::number(next));
  std::this_thread::sleep_for(20ms);  // a thread that goes on asks 100 times
  CHECK_EQ(imitation->queries(), before);
  CHECK(!next[0]->poll().has_value());
  imitation->set_finishes(true);
  for (const int rank : {0, 1}) queues.of(rank).resume();
  for (const int rank : {0, 1}) {
    CHECK(awaited_outcome(*next[rank]).ok());
    await([&] { return calls[rank]->has_ended(); });
  }
}

// For ThreadSanitizer.
TEST(nccl_queue, serves_several_threads) {
  Queues queues;
  std::vector<std::thread> threads;
  for (int i = 0; i < 3; ++i) {
    threads.emplace_back([&queues, i] {
      for (std::size_t n = 0; n < 20; ++n) {
        const auto call = queues.make(1, n + 1);
        if (i == 2) {
          queues.of(1).suspend();
          queues.of(1).resume();
        }
        call->fail({Code::kMismatch, "the calls differ", 0});
        CHECK(call->has_ended());
      }
    });
  }
  for (std::size_t n = 0; n < 20; ++n) queues.issue(n + 1);
  for (std::thread& thread : threads) thread.join();
  CHECK(!queues.failure_of(1, {0, 1}).has_value());
}

}  // namespace
}  // namespace bluecomm::test
