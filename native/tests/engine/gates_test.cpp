#include <atomic>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/gate.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

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

}  // namespace
}  // namespace bluecomm::test
