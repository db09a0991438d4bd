// How sends and receives fail: which texts both ranks get, and what later calls see.
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/p2p/points.h"

namespace bluecomm::test {
namespace {

TEST(point_failures, a_mismatch_fails_on_both_ranks) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> values(rank == 0 ? 1000000 : 10);
    PointCall call =
        rank == 0 ? send_call(engine, values, 1, 3) : recv_call(engine, values, 0, 3);
    if (rank == 1) call.dtype = DType::kInt32;
    const Status status = run_point(engine, std::move(call));
    check_failure(status, Code::kMismatch, "send float32 [1000000]");
    check_failure(status, Code::kMismatch, "recv int32 [10]");
    CHECK_EQ(status.rank, 1 - rank);
    // The next message with this tag is not affected.
    std::vector<float> next(2, rank == 0 ? 5.0F : 0.0F);
    CHECK_EQ(run_point(engine, rank == 0 ? send_call(engine, next, 1, 3)
                                         : recv_call(engine, next, 0, 3))
                 .text,
             "");
    CHECK_EQ(next[1], 5.0F);
  });
}

TEST(point_failures, a_send_that_has_returned_fails_in_a_later_call) {
  EngineWorld world(2);
  std::vector<float> values(3);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  CHECK_EQ(run_point(sender, send_call(sender, values, 1)).text, "");
  std::vector<float> wrong(4);
  check_failure(run_point(receiver, recv_call(receiver, wrong, 0)), Code::kMismatch,
                "(3 elements)");
  Status status;
  await([&] {
    if (status.ok()) status = run_point(sender, send_call(sender, values, 1, 1));
    return !status.ok();
  });
  check_failure(status, Code::kMismatch,
                "was carried out; an earlier operation failed on rank 1");
  check_failure(status, Code::kMismatch, "(4 elements)");
  CHECK_EQ(run_point(sender, send_call(sender, values, 1, 2)).text, "");
}

TEST(point_failures, calls_of_a_removed_group_fail) {
  constexpr std::uint64_t kSet = 77;
  constexpr const char* kWhy =
      "cut short, because rank 0 (host0) has freed the process set";
  EngineWorld world(2);
  for (const int rank : {0, 1}) world.engine(rank).add_group(kSet, {0, 1}, {0, 0});
  Engine& first = world.engine(0);
  Engine& second = world.engine(1);
  std::vector<float> sent(1000000);
  std::vector<float> received(10);
  const RequestId send = first.submit(send_call(first, sent, 1, 2, kSet));
  const RequestId receive = first.submit(recv_call(first, received, 1, 3, kSet));
  std::vector<float> theirs(1000000);
  const RequestId waiting = second.submit(send_call(second, theirs, 0, 4, kSet));
  PointCall too_late = recv_call(first, received, 1, 3, kSet);
  first.remove_group(kSet);
  CHECK_THROWS(first.submit(std::move(too_late)), std::invalid_argument, "was removed");
  check_failure(finish(first, send), Code::kFreed, kWhy);
  check_failure(finish(first, receive), Code::kFreed, kWhy);
  check_failure(finish(second, waiting), Code::kFreed, kWhy);
  check_failure(run_point(second, send_call(second, theirs, 0, 5, kSet)), Code::kFreed,
                kWhy);
  std::vector<float> lost(1000000);
  check_failure(run_point(second, recv_call(second, lost, 0, 2, kSet)), Code::kFreed,
                kWhy);
  second.remove_group(kSet);
  // Other groups are not affected.
  world.run([&](int rank, Engine& engine) {
    std::vector<float> value(1, rank == 0 ? 3.0F : 0.0F);
    CHECK_EQ(run_point(engine, rank == 0 ? send_call(engine, value, 1)
                                         : recv_call(engine, value, 0))
                 .text,
             "");
    CHECK_EQ(value[0], 3.0F);
    CHECK(!engine.take_late_failure());
  });
}

TEST(point_failures, receives_from_members_that_have_removed_their_group_fail) {
  constexpr std::uint64_t kSet = 78;
  constexpr const char* kWhy =
      "cut short, because rank 0 (host0) has freed the process set";
  EngineWorld world(3);
  for (int rank = 0; rank < 3; ++rank) {
    world.engine(rank).add_group(kSet, {0, 1, 2}, {0, 0, 0});
  }
  Engine& receiver = world.engine(1);
  std::vector<float> sent{4.0F};
  std::vector<float> value(1);
  std::vector<float> from_other(1);
  const RequestId waiting = receiver.submit(recv_call(receiver, value, 0, 1, kSet));
  const RequestId from_any =
      receiver.submit(recv_call(receiver, from_other, kAnySource, 2, kSet));
  CHECK_EQ(
      run_point(world.engine(0), send_call(world.engine(0), sent, 1, 3, kSet)).text,
      "");
  world.engine(0).remove_group(kSet);
  check_failure(finish(receiver, waiting), Code::kFreed, kWhy);
  // The message that rank 0 sent before it removed the group is received. A second
  // receive fails.
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 3, kSet)).text, "");
  CHECK_EQ(value[0], 4.0F);
  check_failure(run_point(receiver, recv_call(receiver, value, 0, 3, kSet)),
                Code::kFreed, kWhy);
  // Rank 2 can still send.
  CHECK(!receiver.done(from_any));
  CHECK_EQ(
      run_point(world.engine(2), send_call(world.engine(2), sent, 1, 2, kSet)).text,
      "");
  CHECK_EQ(finish(receiver, from_any).text, "");
  CHECK_EQ(from_other[0], 4.0F);
  const RequestId last =
      receiver.submit(recv_call(receiver, from_other, kAnySource, 2, kSet));
  world.engine(2).remove_group(kSet);
  check_failure(finish(receiver, last), Code::kFreed, kWhy);
  receiver.remove_group(kSet);
}

TEST(point_failures, a_receive_that_timed_out_leaves_its_message) {
  EngineWorld world(2);
  Engine& receiver = world.engine(1);
  std::vector<float> value(1);
  PointCall call = recv_call(receiver, value, 0, 8);
  call.deadline = Clock::now() + 10ms;
  check_failure(run_point(receiver, std::move(call)), Code::kTimedOut,
                "recv 'tag 8' on rank 1: rank 0 (host0) has not sent it within");
  std::vector<float> sent{6.0F};
  Engine& sender = world.engine(0);
  CHECK_EQ(run_point(sender, send_call(sender, sent, 1, 8)).text, "");
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 8)).text, "");
  CHECK_EQ(value[0], 6.0F);
}

TEST(point_failures, a_timeout_names_the_tags_that_wait) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<float> value(1);
  for (const int tag : {4, 2}) {
    CHECK_EQ(run_point(sender, send_call(sender, value, 1, tag)).text, "");
  }
  Status status;
  await([&] {  // the messages may still be on their way
    if (status.text.ends_with("wait here: 2, 4")) return true;
    PointCall call = recv_call(receiver, value, kAnySource, 3);
    call.deadline = Clock::now() + 10ms;
    status = run_point(receiver, std::move(call));
    return false;
  });
  check_failure(status, Code::kTimedOut, "no rank has sent to this rank within");
}

TEST(point_failures, the_receiver_of_a_send_that_timed_out_gets_its_error) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<float> values(1000000);
  PointCall call = send_call(sender, values, 1);
  call.deadline = Clock::now() + 10ms;
  const Status status = run_point(sender, std::move(call));
  check_failure(status, Code::kTimedOut, "rank 1 (host1) did not receive it within");
  CHECK_EQ(run_point(receiver, recv_call(receiver, values, 0)).text, status.text);
  // The ranks are in step again.
  std::vector<float> value(1, 2.0F);
  CHECK_EQ(run_point(sender, send_call(sender, value, 1)).text, "");
  value[0] = 0.0F;
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0)).text, "");
  CHECK_EQ(value[0], 2.0F);
}

TEST(point_failures, a_lost_peer_fails_what_needs_it) {
  EngineWorld world(3);
  Engine& engine = world.engine(0);
  std::vector<float> values(1000000);
  std::vector<float> early{9.0F};
  Engine& dying = world.engine(1);
  CHECK_EQ(run_point(dying, send_call(dying, early, 0, 5)).text, "");
  std::vector<float> probe(1);
  CHECK_EQ(run_point(dying, send_call(dying, early, 0, 6)).text, "");
  CHECK_EQ(run_point(engine, recv_call(engine, probe, 1, 6)).text, "");

  const RequestId send = engine.submit(send_call(engine, values, 1));
  std::vector<float> from_it(1);
  const RequestId receive = engine.submit(recv_call(engine, from_it, 1));
  std::vector<float> from_any(1);
  const RequestId any = engine.submit(recv_call(engine, from_any, kAnySource, 7));
  world.kill(1);
  engine.peer_lost(1, "rank 1 was killed");
  check_failure(finish(engine, send), Code::kPeerLost, "rank 1 was killed");
  check_failure(finish(engine, receive), Code::kPeerLost, "rank 1 was killed");
  // Its earlier message stays valid, and other ranks may still be the source.
  CHECK_EQ(run_point(engine, recv_call(engine, probe, 1, 5)).text, "");
  CHECK_EQ(probe[0], 9.0F);
  CHECK(!engine.done(any));
  Engine& other = world.engine(2);
  CHECK_EQ(run_point(other, send_call(other, early, 0, 7)).text, "");
  CHECK_EQ(finish(engine, any).text, "");

  const RequestId last = engine.submit(recv_call(engine, from_any, kAnySource, 7));
  world.kill(2);
  engine.peer_lost(2, "rank 2 was killed");
  check_failure(finish(engine, last), Code::kPeerLost,
                "no possible source is left; the last was lost: rank 2 was killed");
}

TEST(point_failures, close_fails_both_sides) {
  EngineWorld world(2);
  std::vector<float> values(1000000);
  std::vector<float> received(values.size());
  Engine& sender = world.engine(0);
  const RequestId send = sender.submit(send_call(sender, values, 1));
  const RequestId waits = sender.submit(recv_call(sender, received, 1));
  Engine& receiver = world.engine(1);
  std::this_thread::sleep_for(5ms);
  sender.close(kDeadline);
  check_failure(finish(sender, send), Code::kClosed, "rank 0 shut down");
  check_failure(finish(sender, waits), Code::kClosed, "rank 0 shut down");
  check_failure(run_point(receiver, recv_call(receiver, received, 0)), Code::kClosed,
                "rank 0 shut down");
  check_failure(run_point(sender, send_call(sender, values, 1)), Code::kClosed,
                "rank 0 shut down");
}

TEST(point_failures, a_failed_send_to_itself_fails_its_receive) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> three(3);
  std::vector<float> four(4);
  const RequestId send = engine.submit(send_call(engine, three, 0));
  check_failure(run_point(engine, recv_call(engine, four, 0)), Code::kMismatch,
                "(4 elements)");
  check_failure(finish(engine, send), Code::kMismatch, "(3 elements)");
  // A send that nobody receives ends, and leaves nothing.
  PointCall call = send_call(engine, three, 0);
  call.deadline = Clock::now() + 10ms;
  check_failure(run_point(engine, std::move(call)), Code::kTimedOut,
                "did not receive it");
  PointCall receive = recv_call(engine, three, 0);
  receive.deadline = Clock::now() + 10ms;
  check_failure(run_point(engine, std::move(receive)), Code::kTimedOut, "has not sent");
}

TEST(point_failures, pending_requests_name_their_peers) {
  EngineWorld world(3);
  Engine& engine = world.engine(0);
  std::vector<float> values(1000000);
  const RequestId send = engine.submit(send_call(engine, values, 2, 4));
  const RequestId receive = engine.submit(recv_call(engine, values, kAnySource, 5));
  const std::vector<PendingRequest> pending = engine.pending();
  CHECK_EQ(pending.size(), 2U);
  CHECK_EQ(pending[0].kind, "send");
  CHECK_EQ(pending[0].waiting_for, std::vector<int>{2});
  CHECK_EQ(pending[0].wish, "to receive with tag 4");
  CHECK_EQ(pending[1].kind, "recv");
  CHECK_EQ(pending[1].waiting_for, (std::vector<int>{1, 2}));
  CHECK_EQ(pending[1].wish, "to send with tag 5");
  for (const RequestId id : {send, receive}) {
    engine.fail(id, {Code::kTimedOut, "enough", -1});
    CHECK_EQ(finish(engine, id).text, "enough");
  }
}

}  // namespace
}  // namespace bluecomm::test
