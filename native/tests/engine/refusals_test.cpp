// Calls that one rank refuses: they take a number, and the other ranks' calls fail.
#include <memory>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/gradual_gate.h"

namespace bluecomm::test {
namespace {

using Informed = Dispatcher::Informed;

const Status kOdd{Code::kMismatch, "ValueError: odd", -1};

void refuse(Engine& engine, Kind kind, const std::string& name,
            Informed whom = Informed::kGroup) {
  engine.refuse(make_call(engine, kind, name, {}, {}), kOdd, whom);
}

Status reduce(Engine& engine, std::vector<float>& tensor, const std::string& name) {
  return run_call(engine, make_call(engine, Kind::kAllreduce, name, tensor, tensor));
}

TEST(refusals, the_other_ranks_fail_and_the_next_calls_meet) {
  for (const std::string name : {"x", ""}) {
    for (const std::size_t count : {3UL, 60000UL}) {
      EngineWorld world(3);
      world.run([&](int rank, Engine& engine) {
        std::vector<float> tensor(count, 1.0F);
        if (rank == 1) {
          refuse(engine, Kind::kAllreduce, name);
        } else {
          check_failure(reduce(engine, tensor, name), Code::kMismatch,
                        "allreduce" + (name.empty() ? "" : " '" + name + "'") +
                            ": rank 1 (host1) refused its call: ValueError: odd");
        }
        for (int i = 1; i < 4; ++i) {
          std::vector<float> agreed(count, static_cast<float>(i));
          CHECK_EQ(reduce(engine, agreed, name).text, "");
          CHECK_EQ(agreed[2], static_cast<float>(3 * i));
        }
        CHECK(!engine.take_late_failure());
      });
    }
  }
}

TEST(refusals, calls_that_all_ranks_refuse_leave_nothing) {
  EngineWorld world(3);
  world.run([&](int, Engine& engine) {
    for (int i = 0; i < 100; ++i) refuse(engine, Kind::kBroadcast, "x");
    std::vector<float> tensor(4, 1.0F);
    CHECK_EQ(reduce(engine, tensor, "x").text, "");
    CHECK_EQ(tensor[0], 3.0F);
    CHECK(engine.pending().empty());
    CHECK(!engine.take_late_failure());
  });
}

TEST(refusals, a_call_in_flight_is_another_one) {
  EngineWorld world(2);
  std::vector<float> a(4, 1.0F), b(4, 2.0F);
  Engine& first = world.engine(0);
  const RequestId id = first.submit(make_call(first, Kind::kAllreduce, "x", a, a));
  refuse(first, Kind::kAllreduce, "x");
  Engine& second = world.engine(1);
  CHECK_EQ(reduce(second, b, "x").text, "");
  CHECK_EQ(first.wait(id, Clock::now() + kDeadline)->text, "");
  CHECK_EQ(a[3], 3.0F);
  CHECK_EQ(b[3], 3.0F);
  check_failure(reduce(second, b, "x"), Code::kMismatch, "rank 0 (host0) refused");
}

TEST(refusals, reach_a_call_whose_input_is_not_written) {
  EngineWorld world(2);
  std::vector<float> tensor(4, 1.0F), next(4, 2.0F);
  Engine& first = world.engine(0);
  refuse(first, Kind::kAllreduce, "x");
  const RequestId id =
      first.submit(make_call(first, Kind::kAllreduce, "x", next, next));
  Engine& second = world.engine(1);
  await([&] { return second.stats().peers[0].channel.messages_received >= 2; });
  Call call = make_call(second, Kind::kAllreduce, "x", tensor, tensor);
  call.gate = std::make_shared<GradualGate>();
  check_failure(run_call(second, std::move(call)), Code::kMismatch,
                "rank 0 (host0) refused its call");
  CHECK_EQ(reduce(second, tensor, "x").text, "");
  CHECK_EQ(first.wait(id, Clock::now() + kDeadline)->text, "");
  first.release(id);
  CHECK_EQ(next[3], 3.0F);
}

TEST(refusals, a_rank_that_had_finished_raises_it_in_its_next_call) {
  EngineWorld world(2);
  std::vector<float> tensor(4, 1.0F);
  Engine& root = world.engine(0);
  CHECK_EQ(
      run_call(root, make_call(root, Kind::kNeighborAllreduce, "x", tensor, tensor))
          .text,
      "");
  refuse(world.engine(1), Kind::kNeighborAllreduce, "x");
  await([&] { return root.stats().peers[0].channel.messages_received == 1; });
  root.with_windows([](WindowService&) { return true; });  // polls
  world.run([&](int rank, Engine& engine) {
    std::vector<float> agreed(4, 1.0F);
    const Status status = reduce(engine, agreed, "y");
    CHECK_EQ(agreed[0], 2.0F);
    if (rank == 1) {
      CHECK_EQ(status.text, "");
    } else {
      check_failure(status, Code::kMismatch, "'x': rank 1 (host1) refused its call");
    }
  });
}

TEST(refusals, a_neighbor_operation_fails_at_the_neighbors_only) {
  EngineWorld world(4);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(4, 1.0F);
    Call call = make_call(engine, Kind::kNeighborAllreduce, "x", tensor, {});
    std::vector<float> output(4);
    call.output = std::as_writable_bytes(std::span<float>(output));
    call.sources = call.destinations = {{rank ^ 1, 1.0}};
    if (rank == 1) {
      engine.refuse(call, kOdd, Informed::kParticipants);
      return;
    }
    const Status status = run_call(engine, std::move(call));
    if (rank == 0) {
      check_failure(status, Code::kMismatch, "rank 1 (host1) refused its call");
    } else {
      CHECK_EQ(status.text, "");
    }
  });
}

TEST(refusals, a_part_that_cannot_follow_fails_as_the_one_before) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(4, 1.0F);
    if (rank == 1) {
      engine.refuse(make_call(engine, Kind::kAllreduce, "x", {}, {}),
                    {Code::kPeerLost, "rank 7 was killed", 7}, Informed::kGroup);
    } else {
      const Status status = reduce(engine, tensor, "x");
      check_failure(status, Code::kPeerLost,
                    "rank 1 (host1) takes no part, because its call has failed before: "
                    "rank 7 was killed");
      CHECK_EQ(status.rank, 7);
    }
    CHECK_EQ(reduce(engine, tensor, "x").text, "");
  });
}

TEST(refusals, a_pairwise_call_needs_its_pair) {
  EngineWorld world(2);
  std::vector<float> input(4, 1.0F), output(4);
  Engine& engine = world.engine(0);
  Call call = make_call(engine, Kind::kPairGossip, "x", input, output);
  engine.refuse(call, kOdd, Informed::kGroup);
  call.sources = call.destinations = {{1, 0.5}};
  CHECK_EQ(engine.calls_like(call), 0U);
  engine.refuse(call, kOdd, Informed::kParticipants);
  CHECK_EQ(engine.calls_like(call), 1U);
}

TEST(refusals, arguments_that_the_plan_refuses_are_told) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(4, 1.0F);
    Call call = make_call(engine, Kind::kBroadcast, "x", tensor, tensor);
    if (rank == 1) {
      call.root = 7;
      CHECK_THROWS(engine.submit(std::move(call)), std::invalid_argument, "root");
    } else {
      check_failure(run_call(engine, std::move(call)), Code::kMismatch,
                    "rank 1 (host1) refused its call: ValueError: ");
    }
    CHECK_EQ(reduce(engine, tensor, "x").text, "");
  });
}

}  // namespace
}  // namespace bluecomm::test
