// The queue of NCCL's calls, with its thread, over a driver and an NCCL that the test
// controls.
#include "device/nccl_queue.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

using device::CudaDevice;
using device::CudaDriver;
using device::CudaFunctions;
using device::NcclCall;
using device::NcclFunctions;
using device::NcclGroup;
using device::NcclHandle;
using device::NcclLibrary;
using device::NcclQueue;
using device::NcclWork;

// The state of the device and of NCCL. Ranks share the device. There is a log for each
// number of a rank in its group.
class Imitation {
 public:
  void log(NcclHandle comm, const std::string& call) {
    const std::lock_guard lock(mutex_);
    calls_[comm].push_back(call);
    if (call == "abort") finishes_ = true;  // streams go on
  }
  std::vector<std::string> calls(int rank) {
    const std::lock_guard lock(mutex_);
    return calls_[comm_of(rank)];
  }
  bool has_called(int rank, const std::string& call) {
    for (const std::string& one : calls(rank)) {
      if (one == call) return true;
    }
    return false;
  }
  int query() {
    const std::lock_guard lock(mutex_);
    ++queries_;
    return finishes_ ? 0 : device::kCudaNotReady;
  }
  std::size_t queries() {
    const std::lock_guard lock(mutex_);
    return queries_;
  }
  // Whether the device finishes its work.
  void set_finishes(bool finishes) {
    const std::lock_guard lock(mutex_);
    finishes_ = finishes;
  }

  static NcclHandle comm_of(int rank) {
    return reinterpret_cast<NcclHandle>(static_cast<std::uintptr_t>(rank) + 1);
  }

 private:
  std::mutex mutex_;
  std::map<NcclHandle, std::vector<std::string>> calls_;
  std::size_t queries_ = 0;
  bool finishes_ = true;
};

std::unique_ptr<Imitation> imitation;

CudaFunctions cuda_of_imitation() {
  CudaFunctions all{};
  all.init = [](unsigned) { return 0; };
  all.device_count = [](int* count) {
    *count = 1;
    return 0;
  };
  all.device_get = [](int*, int) { return 0; };
  all.context_retain = [](device::CudaContext*, int) { return 0; };
  all.context_release = [](int) { return 0; };
  all.context_push = [](device::CudaContext) { return 0; };
  all.context_pop = [](device::CudaContext*) { return 0; };
  all.stream_priorities = [](int*, int*) { return 0; };
  all.stream_create = [](device::CudaStream*, unsigned, int) { return 0; };
  all.stream_destroy = [](device::CudaStream) { return 0; };
  all.stream_wait = [](device::CudaStream, device::CudaEvent, unsigned) { return 0; };
  all.stream_is_capturing = [](device::CudaStream, int*) { return 0; };
  all.exchange_capture_mode = [](int*) { return 0; };
  all.event_create = [](device::CudaEvent*, unsigned) { return 0; };
  all.event_record = [](device::CudaEvent, device::CudaStream) { return 0; };
  all.event_query = [](device::CudaEvent) { return imitation->query(); };
  all.event_destroy = [](device::CudaEvent) { return 0; };
  all.event_elapsed = [](float*, device::CudaEvent, device::CudaEvent) { return 0; };
  all.error_name = [](int, const char** name) {
    *name = "CUDA_ERROR";
    return 0;
  };
  all.error_text = all.error_name;
  return all;
}

NcclFunctions nccl_of_imitation() {
  NcclFunctions all{};
  all.get_unique_id = [](device::NcclId*) { return 0; };
  all.init_rank = [](NcclHandle* comm, int, device::NcclId, int rank,
                     device::NcclConfig*) {
    *comm = Imitation::comm_of(rank);
    return device::kNcclInProgress;
  };
  all.get_async_error = [](NcclHandle, int* error) {
    *error = 0;
    return 0;
  };
  all.finalize = [](NcclHandle comm) {
    imitation->log(comm, "finalize");
    return 0;
  };
  all.abort = [](NcclHandle comm) {
    imitation->log(comm, "abort");
    return 0;
  };
  all.all_reduce = [](const void*, void*, std::size_t count, int, int, NcclHandle comm,
                      device::CudaStream) {
    imitation->log(comm, "allreduce " + std::to_string(count));
    return 0;
  };
  all.group_start = [] { return 0; };
  all.group_end = [] { return 0; };
  all.send = [](const void*, std::size_t nbytes, int, int peer, NcclHandle comm,
                device::CudaStream) {
    imitation->log(comm,
                   "send " + std::to_string(nbytes) + " to " + std::to_string(peer));
    return 0;
  };
  all.receive = [](void*, std::size_t nbytes, int, int peer, NcclHandle comm,
                   device::CudaStream) {
    imitation->log(
        comm, "receive " + std::to_string(nbytes) + " from " + std::to_string(peer));
    return 0;
  };
  all.error_text = [](int) { return "error"; };
  all.last_error = [](NcclHandle) { return ""; };
  return all;
}

using CallOfRanks = std::vector<std::shared_ptr<NcclCall>>;  // one of each rank
using AnswerBytes = std::array<std::byte, Ticket::kAnswerBytes>;

// The queues of some ranks.
class Queues {
 public:
  explicit Queues(int size = 2, bool awaits_device = false) {
    imitation = std::make_unique<Imitation>();
    const auto library = std::make_shared<NcclLibrary>(nccl_of_imitation(), 22907);
    const auto device = std::make_shared<CudaDevice>(
        std::make_shared<const CudaDriver>(cuda_of_imitation()), 0);
    for (int rank = 0; rank < size; ++rank) {
      queues_.push_back(NcclQueue::open(library, device, rank, awaits_device));
    }
  }

  NcclQueue& of(int rank) { return *queues_[static_cast<std::size_t>(rank)]; }
  std::shared_ptr<NcclCall> make(int rank, std::size_t count,
                                 NcclCall::Limit limit = kDeadline) {
    NcclWork work;
    work.count = count;
    return enter(rank, {0, 1}, work, limit);
  }
  // Makes a call of some ranks, and enters it on one of them.
  std::shared_ptr<NcclCall> enter(int rank, const std::vector<int>& ranks,
                                  const NcclWork& work,
                                  NcclCall::Limit limit = kDeadline) {
    const NcclGroup group = group_of(rank, ranks);
    return of(rank).enter(*of(rank).make_call(group, work, nullptr, limit), group);
  }
  // Returns the group of these ranks, as its member `rank` sees it.
  static NcclGroup group_of(int rank, const std::vector<int>& ranks) {
    NcclGroup group;
    for (const int member : ranks) group.id = 10 * group.id + member + 1;
    group.rank = static_cast<int>(std::ranges::find(ranks, rank) - ranks.begin());
    group.ranks = ranks;
    return group;
  }
  // Makes a call of some ranks.
  CallOfRanks make_among(const std::vector<int>& ranks, std::size_t count) {
    NcclWork work;
    work.count = count;
    CallOfRanks calls;
    for (const int rank : ranks) calls.push_back(enter(rank, ranks, work));
    return calls;
  }
  std::shared_ptr<NcclCall> make_exchange(int rank,
                                          std::vector<device::NcclMessage> sends,
                                          std::vector<device::NcclMessage> receives,
                                          bool compares_sizes = false) {
    NcclWork work;
    work.function = NcclWork::Function::kExchange;
    work.sends = std::move(sends);
    work.receives = std::move(receives);
    work.compares_sizes = compares_sizes;
    return enter(rank, {0, 1}, work);
  }
  CallOfRanks make_all(std::size_t count) { return {make(0, count), make(1, count)}; }

  std::optional<Status> failure_of(int rank, const std::vector<int>& ranks) {
    return of(rank).failure_of(group_of(rank, ranks));
  }

  // The steps by which the engine numbers a call that all ranks have made.
  static std::vector<std::uint64_t> propose(const CallOfRanks& calls) {
    std::vector<std::byte> offers;
    for (const auto& call : calls) {
      offers.insert(offers.end(), call->offer().begin(), call->offer().end());
    }
    calls.front()->check_offers(offers);
    std::vector<std::uint64_t> proposals;
    for (std::size_t member = 1; member < calls.size(); ++member) {
      proposals.push_back(calls[member]->propose());
    }
    return proposals;
  }
  static AnswerBytes decide(const CallOfRanks& calls,
                            const std::vector<std::uint64_t>& proposals) {
    AnswerBytes answer{};
    calls.front()->write_answer(proposals, answer);
    return answer;
  }
  static AnswerBytes number(const CallOfRanks& calls) {
    return decide(calls, propose(calls));
  }
  static void take(const CallOfRanks& calls, const AnswerBytes& answer) {
    for (const auto& call : calls) call->take_answer(answer);
  }

  // Has NCCL carry out a call of all ranks.
  void issue(std::size_t count) {
    const CallOfRanks calls = make_all(count);
    take(calls, number(calls));
    for (const auto& call : calls) {
      await([&] { return call->poll().has_value(); });
      CHECK(call->poll()->ok());
    }
  }

 private:
  std::vector<std::shared_ptr<NcclQueue>> queues_;
};

Status awaited_outcome(NcclCall& call) {
  await([&] { return call.poll().has_value(); });
  return call.poll().value_or(Status{});
}

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

TEST(nccl_queue, ends_the_communicator_of_a_group_that_is_forgotten) {
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

TEST(nccl_queue, fails_calls_that_wait_for_their_number_when_a_rank_is_lost) {
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

TEST(nccl_queue, gives_no_number_after_a_loss_and_says_why) {
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

TEST(nccl_queue, says_once_what_follows_from_a_failure_of_another_rank) {
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

TEST(nccl_queue, aborts_when_an_issued_call_fails_on_another_rank) {
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

TEST(nccl_queue, goes_on_with_the_calls_of_groups_that_have_not_failed) {
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

TEST(nccl_queue, can_keep_operations_open_until_the_device_has_finished) {
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

TEST(nccl_queue, aborts_the_communicator_of_a_freed_group_that_fails_elsewhere) {
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

TEST(nccl_queue, aborts_when_the_device_does_not_finish_a_call) {
  Queues queues;
  imitation->set_finishes(false);
  const auto call = queues.make(0, 2, std::chrono::milliseconds(1));
  const CallOfRanks calls{call, queues.make(1, 2)};
  Queues::take(calls, Queues::number(calls));
  await([&] { return call->has_ended(); });
  CHECK(call->poll()->code == Code::kTimedOut);
}

TEST(nccl_queue, ends_in_order_if_nothing_is_left_to_do) {
  Queues queues;
  queues.issue(1);
  queues.of(1).close(kDeadline);
  const std::vector<std::string> expected{"allreduce 1", "finalize", "abort"};
  CHECK(imitation->calls(1) == expected);
}

TEST(nccl_queue, aborts_at_the_end_if_other_ranks_may_have_issued_a_call) {
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

TEST(nccl_queue, ends_while_it_is_suspended) {
  Queues queues;
  queues.issue(1);
  queues.of(0).suspend();
  queues.of(0).close(kDeadline);
  CHECK(imitation->has_called(0, "finalize"));
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
