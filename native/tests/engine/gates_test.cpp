#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/gate.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/gradual_gate.h"

namespace bluecomm::test {
namespace {

// A gate that the test opens, or that fails.
class SwitchedGate final : public Gate {
 public:
  enum class Position { kClosed, kOpen, kBroken };

  std::optional<Status> poll() override {
    ++polls_;
    switch (position_.load()) {
      case Position::kClosed:
        return std::nullopt;
      case Position::kOpen:
        return Status{};
      case Position::kBroken:
        break;
    }
    return Status{Code::kInternal, "the copy failed", -1};
  }
  void turn(Position position) { position_ = position; }
  int polls() const { return polls_; }

 private:
  std::atomic<int> polls_{0};
  std::atomic<Position> position_{Position::kClosed};
};

Call gated(Call call, std::shared_ptr<Gate> gate) {
  call.gate = std::move(gate);
  return call;
}

TEST(gates, hold_back_an_operation_until_its_input_is_written) {
  EngineWorld world(2);
  const auto gate = std::make_shared<SwitchedGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(3, -1.0F);
    Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    if (rank == 1) {
      tensor.assign(3, 2.0F);
      CHECK_EQ(run_call(engine, std::move(call)).text, "");
    } else {
      const RequestId id = engine.submit(gated(std::move(call), gate));
      CHECK(!engine.wait(id, Clock::now() + 20ms).has_value());
      CHECK_EQ(engine.pending().at(0).wish, "its GPU");
      tensor.assign(3, 1.0F);  // the copy ends
      gate->turn(SwitchedGate::Position::kOpen);
      CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
      engine.release(id);
    }
    CHECK_EQ(tensor[2], 3.0F);
  });
}

TEST(gates, keep_the_order_of_calls_with_one_name) {
  EngineWorld world(2);
  const auto gate = std::make_shared<SwitchedGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> first(1, 1.0F);
    std::vector<float> second(1, 10.0F);
    const auto call = [&](std::vector<float>& tensor) {
      return make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    };
    if (rank == 1) {
      CHECK_EQ(run_call(engine, call(first)).text, "");
      CHECK_EQ(run_call(engine, call(second)).text, "");
    } else {
      // The second call is ready first, and its own gate opens while it is queued.
      const RequestId early = engine.submit(gated(call(first), gate));
      const auto open = std::make_shared<SwitchedGate>();
      open->turn(SwitchedGate::Position::kOpen);
      const RequestId late = engine.submit(gated(call(second), open));
      CHECK(!engine.wait(late, Clock::now() + 20ms).has_value());
      gate->turn(SwitchedGate::Position::kOpen);
      for (const RequestId id : {late, early}) {
        CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
        engine.release(id);
      }
    }
    CHECK_EQ(first[0], 2.0F);
    CHECK_EQ(second[0], 20.0F);
  });
}

TEST(gates, let_other_operations_pass) {
  EngineWorld world(2);
  const auto gate = std::make_shared<SwitchedGate>();
  world.run([&](int, Engine& engine) {
    std::vector<float> held(1, 1.0F);
    std::vector<float> other(1, 1.0F);
    const RequestId id = engine.submit(
        gated(make_call(engine, Kind::kAllreduce, "held", held, held), gate));
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "y", other, other)).text,
        "");
    gate->turn(SwitchedGate::Position::kOpen);
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    engine.release(id);
  });
}

TEST(gates, are_polled_less_often_than_transports) {
  EngineWorld world(2);
  world.run([&](int, Engine& engine) {
    const auto gate = std::make_shared<SwitchedGate>();
    std::vector<float> held(1, 1.0F);
    std::vector<float> other(1, 1.0F);
    const Clock::time_point begin = Clock::now();
    const RequestId id = engine.submit(
        gated(make_call(engine, Kind::kAllreduce, "held", held, held), gate));
    for (int i = 0; i < 200; ++i) {  // each wait polls the transports many times
      CHECK_EQ(
          run_call(engine, make_call(engine, Kind::kAllreduce, "y", other, other)).text,
          "");
    }
    const int polls = gate->polls();
    CHECK(polls <= 2 + (Clock::now() - begin) / 100us);
    gate->turn(SwitchedGate::Position::kOpen);
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    engine.release(id);
  });
}

TEST(gates, that_fail_end_the_operation_on_all_ranks) {
  EngineWorld world(2);
  const auto gate = std::make_shared<SwitchedGate>();
  gate->turn(SwitchedGate::Position::kBroken);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1);
    Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    if (rank == 0) call.gate = gate;
    check_failure(run_call(engine, std::move(call)), Code::kInternal,
                  "allreduce 'x' on rank 0: the copy failed");
    // No operation stays held back.
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor)).text,
        "");
  });
}

TEST(gates, that_stay_closed_end_with_the_deadline) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> tensor(1);
  Call call = gated(make_call(engine, Kind::kAllreduce, "x", tensor, tensor),
                    std::make_shared<SwitchedGate>());
  call.deadline = Clock::now() + 20ms;
  check_failure(run_call(engine, std::move(call)), Code::kTimedOut,
                "the device has not finished in time");
}

TEST(gates, that_stay_closed_do_not_delay_close) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> tensor(1);
  const RequestId id =
      engine.submit(gated(make_call(engine, Kind::kAllreduce, "x", tensor, tensor),
                          std::make_shared<SwitchedGate>()));
  engine.close(kDeadline);
  check_failure(*engine.wait(id, Clock::now() + kDeadline), Code::kClosed,
                "cut short, because rank 0 shut down");
  engine.release(id);
}

// --- Inputs in parts -----------------------------------------------------------------

constexpr float kUnwritten = -1e9F;

// Runs a call whose input is written part by part on all ranks, each part when the
// engine has polled the gate, and compares its result with that of a call whose input
// is complete.
void check_gradual(EngineWorld& world, Kind kind, std::uint64_t group) {
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input(kCount, kUnwritten);
    std::vector<float> whole(kCount);
    for (std::size_t i = 0; i < kCount; ++i) whole[i] = part_value(rank, i);
    const std::size_t length = kind == Kind::kReducescatter
                                   ? kCount / static_cast<std::size_t>(world.size())
                               : kind == Kind::kReduce && rank != 0 ? 0
                                                                    : kCount;
    std::vector<float> result(length);
    std::vector<float> expected(length);
    const auto call = [&](const std::vector<float>& from, std::vector<float>& to) {
      Call call = make_call(engine, kind, "x", from, to, group);
      if (kind != Kind::kNeighborAllreduce) return call;
      const int size = world.size();
      call.self_weight = 0.5;
      call.sources = {{(rank + size - 1) % size, 0.5}};
      call.destinations = {{(rank + 1) % size, 1.0}};
      return call;
    };
    CHECK_EQ(run_call(engine, call(whole, expected)).text, "");

    const auto gate = std::make_shared<GradualGate>();
    const RequestId id = engine.submit(gated(call(input, result), gate));
    constexpr std::size_t kStep = kPart / sizeof(float);
    for (std::size_t begin = 0; begin < kCount; begin += kStep) {
      std::copy_n(whole.data() + begin, kStep, input.data() + begin);
      gate->write((begin + kStep) * sizeof(float));
      engine.wait(id, Clock::now() + 1ms);
    }
    CHECK(!engine.wait(id, Clock::now() + 1ms).has_value());  // it may still fail
    gate->finish();
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    engine.release(id);
    CHECK(result == expected);
  });
}

constexpr Kind kReadInOrder[] = {Kind::kAllreduce, Kind::kNeighborAllreduce,
                                 Kind::kBroadcast, Kind::kReduce, Kind::kReducescatter};

TEST(gates, let_an_operation_read_the_parts_that_are_written) {
  for (const bool has_hosts : {false, true}) {
    EngineWorld world(3);
    constexpr std::uint64_t kHosts = 7;
    if (has_hosts) {
      for (int rank = 0; rank < 3; ++rank) {
        world.engine(rank).add_group(kHosts, {0, 1, 2}, {0, 1, 2});
      }
    }
    for (const Kind kind : kReadInOrder) {
      check_gradual(world, kind, has_hosts ? kHosts : kWorld);
    }
  }
}

TEST(gates, let_an_operation_read_parts_over_sockets) {
  EngineWorld world(3, over_tcp(2, stream::Encryption::kOff));
  for (const Kind kind : kReadInOrder) check_gradual(world, kind, kWorld);
}

TEST(gates, let_the_first_part_travel_before_the_last_one_is_written) {
  EngineWorld world(2);
  const auto gate = std::make_shared<GradualGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input(kCount, 1.0F);
    std::vector<float> result(kCount);
    Call call = make_call(engine, Kind::kNeighborAllreduce, "x", input, result);
    call.self_weight = 1.0;
    (rank == 0 ? call.destinations : call.sources) = {{1 - rank, 1.0}};
    if (rank == 0) {
      call.gate = gate;
      gate->write(kPart);
    }
    const RequestId id = engine.submit(std::move(call));
    if (rank == 1) {
      await([&] {
        engine.wait(id, Clock::now() + 1ms);
        return engine.pending().at(0).received_bytes >= kPart / 2;
      });
      gate->finish();
    }
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    engine.release(id);
    CHECK_EQ(result.back(), rank == 0 ? 1.0F : 2.0F);
  });
}

TEST(gates, that_fail_after_a_part_end_the_operation_on_all_ranks) {
  EngineWorld world(2);
  const auto gate = std::make_shared<GradualGate>();
  world.run([&](int rank, Engine& engine) {
    std::vector<float> input(kCount);
    std::vector<float> result(kCount);
    Call call = make_call(engine, Kind::kAllreduce, "x", input, result);
    if (rank == 0) {
      call.gate = gate;
      gate->write(kPart);
    }
    const RequestId id = engine.submit(std::move(call));
    engine.wait(id, Clock::now() + 1ms);
    if (rank == 0) gate->break_off();
    check_failure(*engine.wait(id, Clock::now() + kDeadline), Code::kInternal,
                  "allreduce 'x' on rank 0: the copy failed");
    engine.release(id);
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kAllreduce, "x", input, result)).text,
        "");
  });
}

TEST(gates, that_stop_after_a_part_end_with_the_deadline) {
  EngineWorld world(1);
  Engine& engine = world.engine(0);
  std::vector<float> input(kCount);
  std::vector<float> result(kCount);
  const auto gate = std::make_shared<GradualGate>();
  gate->write(kPart);
  Call call = gated(make_call(engine, Kind::kAllreduce, "x", input, result), gate);
  call.deadline = Clock::now() + 20ms;
  check_failure(run_call(engine, std::move(call)), Code::kTimedOut,
                "the device has not finished in time");
}

}  // namespace
}  // namespace bluecomm::test
