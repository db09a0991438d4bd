// A transport whose functions throw, as they do when the library below it has failed.
#include <atomic>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/gradual_gate.h"
#include "tests/p2p/points.h"
#include "tests/window/windows.h"
#include "window/calls.h"

namespace bluecomm::test {
namespace {

enum class Breaks { kNothing, kSends, kAll };

// Shared with the test, which sets what breaks.
using BreakState = std::atomic<Breaks>;

class BreakableChannel final : public Channel {
 public:
  BreakableChannel(Channel& inner, const BreakState& state)
      : inner_(inner), state_(state) {}

  int peer() const override { return inner_.peer(); }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override {
    check();
    return inner_.send(header, payload);
  }
  void post(const Header& header, std::span<const std::byte> payload) override {
    check();
    inner_.post(header, payload);
  }
  ChannelStats stats() const override { return inner_.stats(); }

 private:
  void check() const {
    if (state_ != Breaks::kNothing) throw std::runtime_error("no send");
  }

  Channel& inner_;
  const BreakState& state_;
};

class BreakableTransport final : public Transport {
 public:
  BreakableTransport(std::unique_ptr<Transport> inner, const BreakState& state)
      : inner_(std::move(inner)), state_(state) {}

  std::string_view name() const override { return inner_->name(); }
  std::string offer() const override { return inner_->offer(); }
  Channel& channel(int peer, std::string_view offer) override {
    channels_.push_back(
        std::make_unique<BreakableChannel>(inner_->channel(peer, offer), state_));
    return *channels_.back();
  }
  bool poll(Receiver& receiver) override {
    check("poll");
    return inner_->poll(receiver);
  }
  int wait_fd() const override { return inner_->wait_fd(); }
  bool prepare_sleep() override { return inner_->prepare_sleep(); }
  void finish_sleep() override { inner_->finish_sleep(); }
  Clock::time_point next_timer() const override { return inner_->next_timer(); }
  void forget(int peer) override {
    check("forget");
    inner_->forget(peer);
  }
  void close() override {
    check("close");
    inner_->close();
  }
  bool closed() const override { return inner_->closed(); }
  void abandon_after_fork() noexcept override { inner_->abandon_after_fork(); }

 private:
  void check(const char* what) const {
    if (state_ == Breaks::kAll) throw std::runtime_error(std::string("no ") + what);
  }

  const std::unique_ptr<Transport> inner_;
  const BreakState& state_;
  std::vector<std::unique_ptr<Channel>> channels_;
};

// Two ranks. The transport of the first one breaks when the test sets `state`.
struct BreakableWorld {
  BreakState state = Breaks::kNothing;
  InprocHub hub{2};
  EngineWorld world{2, [this](int rank) -> std::unique_ptr<Transport> {
                      auto inner = hub.make_transport(rank);
                      if (rank != 0) return inner;
                      return std::make_unique<BreakableTransport>(std::move(inner),
                                                                  state);
                    }};
};

Status result_of(Engine& engine, RequestId id) {
  const std::optional<Status> status = engine.wait(id, Clock::now() + kDeadline);
  REQUIRE(status.has_value());
  return *status;
}

TEST(broken_transport, all_operations_fail_and_the_engine_can_be_closed) {
  BreakableWorld broken;
  Engine& engine = broken.world.engine(0);
  std::vector<float> tensor(4, 1.0F);
  std::vector<RequestId> ids;
  for (int i = 0; i < 3; ++i) {  // the second and third are queued
    ids.push_back(
        engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor)));
  }
  broken.state = Breaks::kAll;
  const std::string why =
      "allreduce 'x' on rank 0: rank 0 cannot communicate any more, because its "
      "transport inproc failed: no poll";
  const Status first = result_of(engine, ids[0]);
  CHECK_EQ(static_cast<int>(first.code), static_cast<int>(Code::kInternal));
  CHECK_EQ(first.text, why);
  for (const RequestId id : {ids[1], ids[2]}) {
    CHECK_EQ(static_cast<int>(result_of(engine, id).code),
             static_cast<int>(Code::kInternal));
  }
  CHECK_EQ(
      run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor)).text,
      why);
  engine.peer_lost(1, "it was killed");
  engine.close(kDeadline);
}

TEST(broken_transport, closing_ends_the_running_operations) {
  BreakableWorld broken;
  Engine& engine = broken.world.engine(0);
  std::vector<float> tensor(4, 1.0F);
  const RequestId id =
      engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
  broken.state = Breaks::kAll;
  engine.close(kDeadline);
  CHECK(!result_of(engine, id).ok());
}

TEST(broken_transport, an_operation_that_cannot_send_fails_alone) {
  BreakableWorld broken;
  Engine& engine = broken.world.engine(0);
  std::vector<float> tensor(4, 1.0F);
  broken.state = Breaks::kSends;
  const Status status =
      run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
  CHECK_EQ(static_cast<int>(status.code), static_cast<int>(Code::kInternal));
  CHECK_EQ(status.text, "allreduce 'x' on rank 0: no send");
  engine.close(kDeadline);
}

// A message that the transport did not take fails the receive that would have taken it,
// when the transport works again. Messages after it do not take its place.
TEST(broken_transport, the_receiver_learns_of_a_send_once_it_can) {
  for (const bool is_held : {false, true}) {
    BreakableWorld broken;
    Engine& sender = broken.world.engine(0);
    Engine& receiver = broken.world.engine(1);
    std::vector<float> first{1.0F};
    std::vector<float> second{2.0F};
    std::vector<float> got(1);
    const RequestId waits = receiver.submit(recv_call(receiver, got, 0));
    const auto gate = std::make_shared<GradualGate>();
    PointCall call = send_call(sender, first, 1);
    if (is_held) call.gate = gate;
    if (!is_held) broken.state = Breaks::kSends;
    const RequestId id = sender.submit(std::move(call));
    broken.state = Breaks::kSends;
    gate->finish();
    check_failure(finish(sender, id), Code::kInternal,
                  "send 'tag 0' on rank 0: no send");
    const RequestId next = sender.submit(send_call(sender, second, 1));
    CHECK(!receiver.done(waits));
    broken.state = Breaks::kNothing;
    check_failure(finish(receiver, waits), Code::kInternal,
                  "send 'tag 0' on rank 0: no send");
    CHECK_EQ(run_point(receiver, recv_call(receiver, got, 0)).text, "");
    CHECK_EQ(got[0], 2.0F);
    CHECK_EQ(finish(sender, next).text, "");
  }
}

TEST(broken_transport, a_put_that_cannot_be_sent_fails_alone) {
  BreakableWorld broken;
  const std::vector<double> values{1.0};
  std::vector<std::shared_ptr<Window>> windows;
  std::vector<RequestId> opens;
  for (int rank = 0; rank < 2; ++rank) {
    WindowConfig config;
    config.id = 7;
    config.name = "x";
    config.rank = rank;
    config.dtype = DType::kFloat64;
    config.nbytes = sizeof(double);
    config.in_neighbors = config.out_neighbors = {1 - rank};
    windows.push_back(
        std::make_shared<Window>(config, bytes_of(values), allocate_aligned));
    opens.push_back(broken.world.engine(rank).with_windows([&](WindowService& service) {
      return service.open(windows.back(), Clock::now() + kDeadline)->id();
    }));
  }
  for (int rank = 0; rank < 2; ++rank) {
    CHECK_EQ(result_of(broken.world.engine(rank), opens[rank]).text, "");
  }

  Engine& engine = broken.world.engine(0);
  const WindowPut call{bytes_of(values), {{1, 1.0}}, false, false};
  broken.state = Breaks::kSends;
  for (int i = 0; i < 2; ++i) {
    const RequestId id =
        put(engine, windows[0], call, Clock::now() + kDeadline, /*blocking=*/false);
    REQUIRE(id != 0);
    const Status status = result_of(engine, id);
    CHECK_EQ(static_cast<int>(status.code), static_cast<int>(Code::kInternal));
    CHECK_EQ(status.text, "win_put 'x' on rank 0: no send");
  }
  broken.state = Breaks::kNothing;
  CHECK_EQ(
      result_of(engine, put(engine, windows[0], call, Clock::now() + kDeadline, false))
          .text,
      "");
  engine.close(kDeadline);
}

}  // namespace
}  // namespace bluecomm::test
