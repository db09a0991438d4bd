// Sends whose values are still being written.
#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/engine/gradual_gate.h"
#include "tests/p2p/points.h"

namespace bluecomm::test {
namespace {

PointCall gated(PointCall call, std::shared_ptr<Gate> gate) {
  call.gate = std::move(gate);
  return call;
}

void check_first_part(EngineWorld& world) {
  const auto gate = std::make_shared<GradualGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> values(kCount, rank == 0 ? 1.0F : 0.0F);
    if (rank == 0) {
      gate->write(2 * kPart);
      CHECK_EQ(run_point(engine, gated(send_call(engine, values, 1), gate)).text, "");
      return;
    }
    const RequestId id = engine.submit(recv_call(engine, values, 0));
    const Engine::Part part = engine.wait_part(id, kPart, Clock::now() + kDeadline);
    CHECK(!part.status.has_value());
    CHECK(part.final_prefix >= kPart);
    CHECK_EQ(values[kPart / sizeof(float) - 1], 1.0F);
    gate->finish();
    CHECK_EQ(finish(engine, id).text, "");
    CHECK_EQ(values.back(), 1.0F);
  });
}

TEST(gated_sends, start_with_the_part_that_is_written) {
  EngineWorld world(2);
  check_first_part(world);
  EngineWorld over_sockets(2, over_tcp(2, stream::Encryption::kOff));
  check_first_part(over_sockets);
}

TEST(gated_sends, that_are_short_keep_their_order) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  Engine& receiver = world.engine(1);
  const auto gate = std::make_shared<GradualGate>();
  std::vector<float> first{0.0F};
  std::vector<float> second{2.0F};
  const RequestId early = sender.submit(gated(send_call(sender, first, 1), gate));
  const RequestId late = sender.submit(send_call(sender, second, 1));
  CHECK_EQ(sender.pending().at(0).wish, "its GPU");
  std::vector<float> got(2);
  const std::span<float> all(got);
  const RequestId one = receiver.submit(recv_call(receiver, all.first(1), 0));
  const RequestId two = receiver.submit(recv_call(receiver, all.last(1), 0));
  CHECK(!receiver.wait(one, Clock::now() + 10ms).has_value());
  first[0] = 1.0F;
  gate->finish();
  for (const RequestId id : {early, late}) CHECK_EQ(finish(sender, id).text, "");
  for (const RequestId id : {one, two}) CHECK_EQ(finish(receiver, id).text, "");
  CHECK(got == std::vector<float>({1.0F, 2.0F}));
}

TEST(gated_sends, whose_gate_fails_end_on_both_ranks) {
  for (const std::size_t written : {std::size_t{0}, kPart}) {
    EngineWorld world(2);
    const auto gate = std::make_shared<GradualGate>();
    world.run([&](int rank, Engine& engine) {
      std::vector<float> values(kCount);
      const RequestId id =
          engine.submit(rank == 0 ? gated(send_call(engine, values, 1), gate)
                                  : recv_call(engine, values, 0));
      if (rank == 1) {
        gate->write(written);
        engine.wait_part(id, written / 2, Clock::now() + kDeadline);
        gate->break_off();
      }
      check_failure(finish(engine, id), Code::kInternal, "the copy failed");
      // The next message is not mistaken for it.
      CHECK_EQ(run_point(engine, rank == 0 ? send_call(engine, values, 1)
                                           : recv_call(engine, values, 0))
                   .text,
               "");
    });
  }
}

TEST(gated_sends, end_with_the_deadline_and_let_later_ones_pass) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  std::vector<float> values{1.0F};
  PointCall call = gated(send_call(sender, values, 1), std::make_shared<GradualGate>());
  call.deadline = Clock::now() + 10ms;
  const RequestId early = sender.submit(std::move(call));
  const RequestId late = sender.submit(send_call(sender, values, 1));
  check_failure(finish(sender, early), Code::kTimedOut,
                "the device has not finished in time");
  CHECK_EQ(finish(sender, late).text, "");
}

TEST(gated_sends, that_wait_for_an_earlier_one_say_so) {
  EngineWorld world(2);
  Engine& sender = world.engine(0);
  std::vector<float> values{1.0F};
  const auto gate = std::make_shared<GradualGate>();
  const RequestId early = sender.submit(gated(send_call(sender, values, 1), gate));
  PointCall call = send_call(sender, values, 1);
  call.deadline = Clock::now() + 10ms;
  check_failure(run_point(sender, std::move(call)), Code::kTimedOut,
                "an earlier send to that rank waits for its GPU");
  gate->finish();
  CHECK_EQ(finish(sender, early).text, "");
}

TEST(gated_sends, to_oneself_carry_what_is_written) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  const auto gate = std::make_shared<GradualGate>();
  gate->write(kPart);
  std::vector<float> sent(kCount, 1.0F);
  std::vector<float> got(kCount);
  const RequestId send = engine.submit(gated(send_call(engine, sent, 0), gate));
  const RequestId receive = engine.submit(recv_call(engine, got, 0));
  const Engine::Part part = engine.wait_part(receive, kPart, Clock::now() + kDeadline);
  CHECK(!part.status.has_value());
  CHECK_EQ(part.final_prefix, kPart);
  gate->finish();
  for (const RequestId id : {send, receive}) CHECK_EQ(finish(engine, id).text, "");
  CHECK(got == sent);
}

}  // namespace
}  // namespace bluecomm::test
