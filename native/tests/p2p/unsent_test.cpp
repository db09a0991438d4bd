// Sends that fail before their messages have left their rank.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/gate.h"
#include "tests/check.h"
#include "tests/engine/gradual_gate.h"
#include "tests/p2p/points.h"

namespace bluecomm::test {
namespace {

RequestId submit_gated(Engine& engine, PointCall call, std::shared_ptr<Gate> gate) {
  call.gate = std::move(gate);
  return engine.submit(std::move(call));
}

void check_broken(const Status& status, int rank = 0) {
  check_failure(status, Code::kInternal, "send 'tag 0' on rank 0: the copy failed");
  CHECK_EQ(status.rank, rank);
}

// The message between two that fail is received in its place. Each receive expects
// another size than that of the message that failed.
void check_order(EngineWorld& world, bool is_early) {
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<std::vector<float>> got{std::vector<float>(3), std::vector<float>(1),
                                      std::vector<float>(5)};
  std::vector<RequestId> receives;
  const auto receive_all = [&] {
    for (std::vector<float>& one : got) {
      receives.push_back(receiver.submit(recv_call(receiver, one, 0)));
    }
  };
  if (is_early) receive_all();
  const auto first = std::make_shared<GradualGate>();
  const auto second = std::make_shared<GradualGate>();
  std::vector<float> value{2.0F};
  const RequestId one = submit_gated(sender, send_call(sender, value, 1), first);
  const RequestId two = sender.submit(send_call(sender, value, 1));
  const RequestId three = submit_gated(sender, send_call(sender, value, 1), second);
  second->break_off();
  check_broken(finish(sender, three), -1);
  CHECK(!sender.done(two));  // and the other rank does not know of the third one yet
  first->break_off();
  check_broken(finish(sender, one), -1);
  CHECK_EQ(finish(sender, two).text, "");
  if (!is_early) receive_all();
  check_broken(finish(receiver, receives[0]));
  CHECK_EQ(finish(receiver, receives[1]).text, "");
  CHECK_EQ(got[1][0], 2.0F);
  check_broken(finish(receiver, receives[2]));
}

TEST(unsent, fail_the_receives_that_would_have_matched) {
  for (const bool is_early : {false, true}) {
    EngineWorld world(2);
    check_order(world, is_early);
    EngineWorld over_sockets(2, over_tcp(2, stream::Encryption::kOff));
    check_order(over_sockets, is_early);
    EngineWorld survivors(EngineWorld::SurvivesLosses{}, 2);
    check_order(survivors, is_early);
  }
}

TEST(unsent, whose_gates_fail_at_the_start_are_told) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  const auto broken = std::make_shared<GradualGate>();
  broken->break_off();
  std::vector<float> large(kCount);
  std::vector<float> value{1.0F};
  for (std::vector<float>* const values : {&large, &value}) {
    const RequestId id = submit_gated(sender, send_call(sender, *values, 1), broken);
    check_broken(finish(sender, id), -1);
    CHECK_EQ(run_point(sender, send_call(sender, value, 1, 1)).text, "");
    check_broken(run_point(receiver, recv_call(receiver, value, kAnySource)));
    CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 1)).text, "");
  }
}

TEST(unsent, fail_the_next_receive_if_the_first_was_given_up) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  const auto gate = std::make_shared<GradualGate>();
  std::vector<float> value{1.0F};
  const RequestId id = submit_gated(sender, send_call(sender, value, 1), gate);
  PointCall early = recv_call(receiver, value, 0);
  early.deadline = Clock::now() + 10ms;
  check_failure(run_point(receiver, std::move(early)), Code::kTimedOut, "has not sent");
  gate->break_off();
  check_broken(finish(sender, id), -1);
  check_broken(run_point(receiver, recv_call(receiver, value, 0)));
}

TEST(unsent, by_their_deadline_are_told_like_others) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<float> value{1.0F};
  PointCall call = send_call(sender, value, 1);
  call.deadline = Clock::now() + 10ms;
  const auto gate = std::make_shared<GradualGate>();
  const Status late = finish(sender, submit_gated(sender, std::move(call), gate));
  check_failure(late, Code::kTimedOut, "the device has not finished in time");
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0)).text, late.text);
}

TEST(unsent, that_wait_behind_a_full_peer_are_told_in_their_turn) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  std::vector<float> empty;
  for (std::size_t i = 0; i < PointCredit::kLimit; ++i) {
    sender.submit(send_call(sender, empty, 1));
  }
  const auto gate = std::make_shared<GradualGate>();
  gate->break_off();
  check_broken(finish(sender, submit_gated(sender, send_call(sender, empty, 1), gate)),
               -1);
  for (std::size_t i = 0; i < PointCredit::kLimit; ++i) {
    CHECK_EQ(run_point(receiver, recv_call(receiver, empty, 0)).text, "");
  }
  check_broken(run_point(receiver, recv_call(receiver, empty, 0)));
}

TEST(unsent, in_a_removed_group_leave_nothing) {
  EngineWorld world(2);
  for (const int rank : {0, 1}) world.engine(rank).add_group(5, {0, 1}, {0, 0});
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  const auto gate = std::make_shared<GradualGate>();
  gate->break_off();
  std::vector<float> value{1.0F};
  const RequestId id = submit_gated(sender, send_call(sender, value, 1, 0, 5), gate);
  check_broken(finish(sender, id), -1);
  CHECK_EQ(run_point(sender, send_call(sender, value, 1, 1)).text, "");
  CHECK_EQ(run_point(receiver, recv_call(receiver, value, 0, 1)).text, "");
  receiver.remove_group(5);
  // The receiver does not answer the notice, so later calls of the sender succeed.
  CHECK_EQ(run_point(receiver, send_call(receiver, value, 0)).text, "");
  CHECK_EQ(run_point(sender, recv_call(sender, value, 1)).text, "");
}

TEST(unsent, because_another_rank_is_lost_are_told) {
  EngineWorld world(2);
  Engine& receiver = world.engine(1);
  const std::string why = "rank 2 was killed";
  const auto gate = std::make_shared<FailedGate>(Status{Code::kPeerLost, why, 2});
  std::vector<float> value{1.0F};
  Engine& sender = world.engine(0);
  const Status own =
      finish(sender, submit_gated(sender, send_call(sender, value, 1), gate));
  check_failure(own, Code::kPeerLost, why);
  const Status theirs = run_point(receiver, recv_call(receiver, value, 0));
  check_failure(theirs, Code::kPeerLost, why);
}

// A send that has failed and whose receiver is lost is forgotten, whichever comes
// first.
TEST(unsent, to_a_lost_rank_leave_nothing) {
  for (const bool fails_first : {false, true}) {
    EngineWorld world(EngineWorld::SurvivesLosses{}, 2);
    Engine& sender = world.engine(0);
    std::vector<float> empty;
    for (std::size_t i = 0; i < PointCredit::kLimit; ++i) {
      sender.submit(send_call(sender, empty, 1));
    }
    if (!fails_first) world.kill(1);
    const auto is_lost = [&] {
      return !run_point(sender, send_call(sender, empty, 1, 1)).ok();
    };
    if (!fails_first) CHECK(is_lost());
    auto gate = std::make_shared<GradualGate>();
    gate->break_off();
    const std::weak_ptr<GradualGate> kept = gate;
    check_broken(finish(sender, submit_gated(sender, send_call(sender, empty, 1),
                                             std::move(gate))),
                 -1);
    if (fails_first) {
      CHECK(!kept.expired());  // the receiver has to learn of it
      world.kill(1);
      CHECK(is_lost());
    }
    CHECK(kept.expired());
  }
}

TEST(unsent, to_oneself_fail_the_receive) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> sent{1.0F};
  std::vector<float> got(1);
  for (const bool is_early : {false, true}) {
    const auto gate = std::make_shared<GradualGate>();
    RequestId receive = 0;
    if (is_early) {
      gate->break_off();
      receive = engine.submit(recv_call(engine, got, 0));
    }
    const RequestId id = submit_gated(engine, send_call(engine, sent, 0), gate);
    gate->break_off();
    check_broken(finish(engine, id), -1);
    if (!is_early) receive = engine.submit(recv_call(engine, got, 0));
    check_broken(finish(engine, receive), -1);
    const RequestId next = engine.submit(send_call(engine, sent, 0));
    CHECK_EQ(run_point(engine, recv_call(engine, got, 0)).text, "");
    CHECK_EQ(finish(engine, next).text, "");
  }
}

}  // namespace
}  // namespace bluecomm::test
