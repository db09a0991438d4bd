// How operations fail: which rank and text the errors name, and that all ranks get
// them.
#include <latch>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "engine/engine.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

Call neighbor_call(Engine& engine, std::span<float> tensor, std::vector<Weight> sources,
                   std::vector<Weight> destinations) {
  Call call = make_call(engine, Kind::kNeighborAllreduce, "n", tensor, tensor);
  call.sources = std::move(sources);
  call.destinations = std::move(destinations);
  return call;
}

TEST(failures, different_shapes_fail_on_all_ranks) {
  for (const std::size_t count : {3UL, 30000UL, 3000000UL}) {
    EngineWorld world(3);
    world.run([&](int rank, Engine& engine) {
      std::vector<float> tensor(rank == 1 ? count + 1 : count);
      const Status status =
          run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
      const std::string own = "called allreduce float32 [" + std::to_string(count);
      check_failure(status, Code::kMismatch, "allreduce 'x': rank ");
      check_failure(status, Code::kMismatch, own + "] sum");
      check_failure(status, Code::kMismatch,
                    "rank 1 (host1) called allreduce float32 [" +
                        std::to_string(count + 1) + "] sum");
      check_failure(status, Code::kMismatch,
                    ". All ranks must pass the same shape and dtype.");
      // The next call is not affected.
      std::vector<float> next(4, 1.0F);
      CHECK_EQ(
          run_call(engine, make_call(engine, Kind::kAllreduce, "x", next, next)).text,
          "");
      CHECK_EQ(next[3], 3.0F);
    });
  }
}

TEST(failures, each_difference_has_its_remedy) {
  struct Case {
    const char* remedy;
    void (*change)(Call&);
  };
  const Case cases[] = {
      {"All ranks must call the same operation under one name.",
       [](Call& call) { call.kind = Kind::kNeighborAllreduce; }},
      {"All ranks must pass the same reduction.",
       [](Call& call) { call.op = ReduceOp::kMax; }},
      {"same scale factors", [](Call& call) { call.prescale = 2.0; }},
      {"All ranks must pass the same shape and dtype.",
       [](Call& call) { call.dtype = DType::kInt32; }},
      {"inside the machine, or over all machines",
       [](Call& call) { call.local_only = true; }},
  };
  for (const Case& one : cases) {
    EngineWorld world(2);
    world.run([&](int rank, Engine& engine) {
      std::vector<float> tensor(8);
      Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
      if (rank == 1) one.change(call);
      if (call.kind == Kind::kNeighborAllreduce) {
        call.sources = {{0, 1.0}};
        call.destinations = {{0, 1.0}};
      }
      const Status status = run_call(engine, std::move(call));
      check_failure(status, Code::kMismatch, one.remedy);
      CHECK_EQ(status.rank, 1 - rank);
    });
  }
}

TEST(failures, different_roots_fail_on_all_ranks) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1 << 20);
    Call call = make_call(engine, Kind::kBroadcast, "x", tensor, tensor);
    call.root = rank == 2 ? 2 : 0;
    const Status status = run_call(engine, std::move(call));
    // Rank 1 may receive everything from rank 0 before it learns of rank 2.
    if (rank == 1 && status.ok()) return;
    check_failure(status, Code::kMismatch, "All ranks must pass the same root rank.");
  });
}

TEST(failures, an_unexpected_source_fails_on_both_sides) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1 << 20);
    const Status status =
        run_call(engine, rank == 0 ? neighbor_call(engine, tensor, {}, {{1, 1.0}})
                                   : neighbor_call(engine, tensor, {{0, 1.0}}, {}));
    CHECK_EQ(status.text, "");
  });
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1 << 20);
    const std::string text =
        "neighbor_allreduce 'n': rank 0 (host0) called neighbor_allreduce float32 "
        "[1048576], where it sends to rank 1 (host1), but rank 1 (host1) does not "
        "receive from rank 0 (host0) in its call.";
    // If the call ended before the failure arrived, the next call raises it.
    Status status =
        run_call(engine, rank == 0 ? neighbor_call(engine, tensor, {}, {{1, 1.0}})
                                   : neighbor_call(engine, tensor, {}, {}));
    const Clock::time_point limit = Clock::now() + kDeadline;
    while (status.ok() && Clock::now() < limit) {
      std::this_thread::sleep_for(10ms);
      status = run_call(engine, neighbor_call(engine, tensor, {}, {}));
    }
    check_failure(status, Code::kMismatch, text);
    CHECK_EQ(status.rank, 1 - rank);
  });
}

TEST(failures, a_source_that_does_not_send_is_noticed_at_its_next_call) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(4);
    const std::string text =
        "neighbor_allreduce 'n': rank 0 (host0) receives from rank 1 (host1), but rank "
        "1 (host1) has ended this call without sending to rank 0 (host0).";
    if (rank == 0) {
      const Status status =
          run_call(engine, neighbor_call(engine, tensor, {{1, 1.0}}, {}));
      check_failure(status, Code::kMismatch, text);
      CHECK_EQ(status.rank, 1);
      return;
    }
    CHECK_EQ(run_call(engine, neighbor_call(engine, tensor, {}, {})).text, "");
    Status status;
    const Clock::time_point limit = Clock::now() + kDeadline;
    while (status.ok() && Clock::now() < limit) {
      status = run_call(engine, neighbor_call(engine, tensor, {}, {{0, 1.0}}));
      std::this_thread::sleep_for(10ms);
    }
    check_failure(status, Code::kMismatch, text);
    CHECK_EQ(status.rank, 0);
  });
}

TEST(failures, both_ends_of_an_unexpected_message_raise_it_in_their_next_call) {
  EngineWorld world(2);
  std::vector<float> tensor(4);
  Engine& receiver = world.engine(1);
  CHECK_EQ(run_call(receiver, neighbor_call(receiver, tensor, {}, {})).text, "");
  Engine& sender = world.engine(0);
  CHECK_EQ(run_call(sender, neighbor_call(sender, tensor, {}, {{1, 1.0}})).text, "");
  // The receiver has noticed and has sent an ABORT, which the sender may not have read.
  Status of_sender;
  await([&] {
    if (of_sender.ok()) {
      of_sender = run_call(sender, neighbor_call(sender, tensor, {}, {}));
    }
    return !of_sender.ok();
  });
  check_failure(of_sender, Code::kMismatch, "does not receive from");
  check_failure(run_call(receiver, neighbor_call(receiver, tensor, {}, {})),
                Code::kMismatch, "does not receive from");
  world.run([&](int, Engine& engine) {
    CHECK_EQ(run_call(engine, make_call(engine, Kind::kBarrier, "c", {}, {})).text, "");
  });
}

TEST(failures, a_timeout_names_the_silent_ranks) {
  EngineWorld world(4);
  std::latch others(2);
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    std::vector<float> tensor(4);
    // Rank 0 times out first and sends an ABORT to the others, whose data arrive
    // before.
    if (rank == 0) others.wait();
    Call call = make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    if (rank == 0) call.deadline = Clock::now() + 2s;
    const RequestId id = engine.submit(std::move(call));
    if (rank != 0) others.count_down();
    const Status status = *engine.wait(id, Clock::now() + kDeadline);
    check_failure(status, Code::kTimedOut,
                  "allreduce 'x' on rank 0: no data from rank 2 within 2.0 s");
    CHECK_EQ(status.rank, 2);
  });
  // Rank 2 calls late and gets the same error, in this call or in a later one.
  Engine& engine = world.engine(2);
  std::vector<float> tensor(4);
  Status status =
      run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
  const Clock::time_point limit = Clock::now() + kDeadline;
  while (status.ok() && Clock::now() < limit) {
    std::this_thread::sleep_for(10ms);
    status = run_call(engine, neighbor_call(engine, tensor, {}, {}));
  }
  check_failure(status, Code::kTimedOut,
                "allreduce 'x' on rank 0: no data from rank 2 within 2.0 s");
}

TEST(failures, a_timeout_tells_what_the_silent_rank_called_instead) {
  for (const int silent : {0, 1}) {
    EngineWorld world(2);
    std::vector<float> a(4);
    std::vector<float> b(4);
    Engine& other = world.engine(silent);
    other.submit(make_call(other, Kind::kAllreduce, "y", a, a));
    Engine& engine = world.engine(1 - silent);
    await([&] { return engine.stats().peers[0].channel.messages_received > 0; });
    Call call = make_call(engine, Kind::kAllreduce, "x", b, b);
    call.deadline = Clock::now() + 100ms;
    const std::string who = std::to_string(silent);
    check_failure(run_call(engine, std::move(call)), Code::kTimedOut,
                  "; rank " + who + " (host" + who +
                      ") has called allreduce 'y', which this rank has not called yet");
  }
}

TEST(failures, all_deadlines_can_be_extended) {
  InprocHub hub(2);
  EngineConfig config;
  config.size = 2;
  std::vector<std::unique_ptr<Transport>> transports;
  transports.push_back(hub.make_transport(0));
  const std::unique_ptr<Transport> other = hub.make_transport(1);
  Dispatcher dispatcher(std::move(config), std::move(transports));
  dispatcher.connect({{0, "host", "here", 1, dispatcher.offers()},
                      {1, "host", "here", 2, {{"inproc", other->offer()}}}});
  dispatcher.add_group({.id = kWorld, .ranks = {0, 1}, .machine_of = {0, 0}, .me = 0});
  const Clock::time_point soon = Clock::now() + kDeadline;
  for (int i = 0; i < 2; ++i) {
    Call call;
    call.kind = Kind::kBarrier;
    call.name = std::to_string(i);
    call.group = dispatcher.group(kWorld);
    call.deadline = soon + i * 1h;
    dispatcher.submit(std::move(call));
  }
  CHECK(dispatcher.next_timer() == soon);
  dispatcher.put_off_deadlines(2h);
  CHECK(dispatcher.next_timer() == soon + 2h);
}

TEST(failures, a_deadline_can_be_moved) {
  EngineWorld world(2);
  Engine& engine = world.engine(0);
  std::vector<float> a(4);
  Call call = make_call(engine, Kind::kAllreduce, "x", a, a);
  const Clock::time_point first = Clock::now() + 1s;
  call.deadline = first;
  const RequestId id = engine.submit(std::move(call));
  engine.extend_deadline(id, kDeadline);
  if (Clock::now() >= first) return;  // a busy machine did not run this thread in time
  CHECK(!engine.wait(id, first + 100ms).has_value());
  std::vector<float> b(4);
  Engine& other = world.engine(1);
  CHECK_EQ(run_call(other, make_call(other, Kind::kAllreduce, "x", b, b)).text, "");
  CHECK(engine.wait(id, Clock::now() + kDeadline)->ok());
}

TEST(failures, the_caller_may_fail_an_operation_for_all) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    std::vector<float> tensor(4);
    const RequestId id =
        engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
    if (rank == 0) engine.fail(id, {Code::kMismatch, "x waits in a cycle", -1});
    const Status status = *engine.wait(id, Clock::now() + kDeadline);
    check_failure(status, Code::kMismatch, "x waits in a cycle");
    CHECK_EQ(status.rank, rank == 0 ? -1 : 0);
  });
}

TEST(failures, a_lost_peer_is_reported_with_the_control_planes_reason) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(1 << 20);
    if (rank == 2) return;
    if (rank == 1) {
      // Rank 0 notices the broken link but waits for the control plane's reason.
      std::this_thread::sleep_for(50ms);
      world.kill(2);
      engine.peer_lost(2, "rank 2 on host2 (pid 1002) was killed by SIGKILL");
    }
    const Status status =
        run_call(engine, make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
    check_failure(status, Code::kPeerLost,
                  "allreduce 'x' on rank 1: rank 2 on host2 (pid 1002) was killed by "
                  "SIGKILL");
    CHECK_EQ(status.rank, 2);
    // Later calls that need the rank fail, and the others continue.
    check_failure(run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {})),
                  Code::kPeerLost, "rank 2 on host2 (pid 1002)");
    CHECK_EQ(run_call(engine, neighbor_call(engine, tensor, {{1 - rank, 1.0}},
                                            {{1 - rank, 1.0}}))
                 .text,
             "");
  });
}

TEST(failures, a_broken_link_is_reported_without_the_control_plane) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    if (rank == 1) {
      world.kill(1);
      return;
    }
    const Status status =
        run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {}));
    check_failure(
        status, Code::kPeerLost,
        "barrier 'b' on rank 0: the link to rank 1 on host1 (pid 1001) broke");
  });
}

TEST(failures, a_failing_rank_tells_its_peers_the_error) {
  EngineWorld world(3);
  std::latch waits(2);
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) {
      waits.wait();
      engine.tell_failing("raised KeyError: 'x'");
      return;
    }
    std::vector<float> tensor(1 << 20);
    const RequestId id =
        engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
    waits.count_down();
    const Status status = *engine.wait(id, Clock::now() + kDeadline);
    check_failure(status, Code::kPeerLost,
                  ": rank 2 on host2 (pid 1002) raised KeyError: 'x'");
    CHECK_EQ(status.rank, 2);
  });
  // The goodbye that follows does not replace the reason, and the others continue.
  world.engine(2).close(kDeadline);
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    check_failure(run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {})),
                  Code::kPeerLost, "raised KeyError: 'x'");
    std::vector<float> tensor(4);
    CHECK_EQ(run_call(engine, neighbor_call(engine, tensor, {{1 - rank, 1.0}},
                                            {{1 - rank, 1.0}}))
                 .text,
             "");
  });
}

TEST(failures, a_failing_rank_reaches_peers_that_have_never_heard_of_it) {
  EngineWorld world(2);
  const std::string error(3 * Channel::kMaxPost, 'e');
  world.engine(1).tell_failing(error);
  const Status status = run_call(
      world.engine(0), make_call(world.engine(0), Kind::kBarrier, "b", {}, {}));
  check_failure(status, Code::kPeerLost, "rank 1 on host1 (pid 1001) eee");
  CHECK(status.text.ends_with(error.substr(0, Channel::kMaxPost)));
  CHECK(!status.text.ends_with(error.substr(0, Channel::kMaxPost + 1)));
}

TEST(failures, data_sent_before_a_goodbye_stays_valid) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(100, rank == 0 ? 5.0F : 0.0F);
    if (rank == 0) {
      CHECK_EQ(
          run_call(engine, make_call(engine, Kind::kBroadcast, "x", tensor, tensor))
              .text,
          "");
      engine.close(kDeadline);
      return;
    }
    std::this_thread::sleep_for(200ms);
    CHECK_EQ(
        run_call(engine, make_call(engine, Kind::kBroadcast, "x", tensor, tensor)).text,
        "");
    CHECK_EQ(tensor[99], 5.0F);
    const Status status =
        run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {}));
    check_failure(status, Code::kPeerLost,
                  "barrier 'b' on rank 1: rank 0 on host0 (pid 1000) has ended its "
                  "communication");
  });
}

// Rank 0 is suspended in a call that rank 1 finishes; then rank 1 is lost.
class CallBeforeLoss {
 public:
  explicit CallBeforeLoss(EngineWorld& world) : slow_(world.engine(0)) {
    Engine& lost = world.engine(1);
    id_ = slow_.submit(make_call(slow_, Kind::kAllreduce, "x", ours_, ours_));
    slow_.suspend();
    std::vector<float> theirs(4, 2.0F);
    CHECK_EQ(
        run_call(lost, make_call(lost, Kind::kAllreduce, "x", theirs, theirs)).text,
        "");
  }

  void report_loss() { slow_.peer_lost(1, "rank 1 was killed"); }

  void check_success() {
    CHECK_EQ(slow_.wait(id_, Clock::now() + kDeadline)->text, "");
    CHECK_EQ(ours_[3], 3.0F);
    slow_.release(id_);
  }

 private:
  Engine& slow_;
  std::vector<float> ours_ = std::vector<float>(4, 1.0F);
  RequestId id_ = 0;
};

TEST(failures, what_a_lost_rank_has_sent_counts_if_its_loss_is_known_first) {
  for (int repeat = 0; repeat < 20; ++repeat) {
    EngineWorld world(2);
    CallBeforeLoss call(world);
    world.engine(0).resume();
    call.report_loss();
    call.check_success();
  }
}

TEST(failures, what_a_lost_rank_has_sent_counts_if_its_loss_is_known_while_suspended) {
  for (const bool survives : {false, true}) {
    std::optional<EngineWorld> world;
    if (survives) {
      world.emplace(EngineWorld::SurvivesLosses{}, 2);
    } else {
      world.emplace(2);
    }
    CallBeforeLoss call(*world);
    call.report_loss();
    Engine& slow = world->engine(0);
    slow.resume();
    call.check_success();
    // From now on, the loss counts.
    std::vector<float> tensor(4);
    check_failure(
        run_call(slow, make_call(slow, Kind::kAllreduce, "y", tensor, tensor)),
        Code::kPeerLost, "rank 1 was killed");
  }
}

TEST(failures, closing_ends_operations_on_all_ranks) {
  EngineWorld world(3);
  std::latch started(2);
  world.run([&](int rank, Engine& engine) {
    if (rank == 2) return;
    std::vector<float> tensor(1 << 20);
    const RequestId id =
        engine.submit(make_call(engine, Kind::kAllreduce, "x", tensor, tensor));
    started.arrive_and_wait();
    if (rank == 1) engine.close(kDeadline);
    check_failure(*engine.wait(id, Clock::now() + kDeadline), Code::kClosed,
                  "allreduce 'x' on rank 1: cut short, because rank 1 shut down");
    engine.release(id);
    if (rank == 0) return;
    check_failure(run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {})),
                  Code::kClosed, "the engine is closed");
    engine.close(kDeadline);
    CHECK(engine.stats().peers.empty());
  });
}

}  // namespace
}  // namespace bluecomm::test
