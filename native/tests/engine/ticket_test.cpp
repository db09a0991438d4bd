// Calls that the library of a device carries out: the engine only orders them.
#include "common/ticket.h"

#include <atomic>
#include <memory>
#include <thread>
#include <vector>

#include "common/failure_watcher.h"
#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/engine/test_ticket.h"
#include "tests/trace/trace_file.h"

namespace bluecomm::test {
namespace {

TEST(tickets, number_calls_when_all_ranks_have_made_them) {
  EngineWorld world(3);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto x = tickets.make(rank);
    const auto y = tickets.make(rank);
    if (rank == 1) {  // waits for y before it calls x
      CHECK_EQ(run_call(engine, on_device(engine, "y", y)).text, "");
      CHECK_EQ(run_call(engine, on_device(engine, "x", x)).text, "");
    } else {
      std::vector<Call> calls;
      calls.push_back(on_device(engine, "x", x));
      calls.push_back(on_device(engine, "y", y));
      CHECK_EQ(run_calls(engine, std::move(calls)).text, "");
    }
    CHECK_EQ(y->number(), 0);
    CHECK_EQ(x->number(), 1);
  });
}

TEST(tickets, tell_the_first_member_what_the_others_propose) {
  EngineWorld world(3);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank);
    ticket->proposal = 40 + static_cast<std::uint64_t>(rank);
    CHECK_EQ(run_call(engine, on_device(engine, "x", ticket)).text, "");
    const std::vector<std::uint64_t> others{41, 42};
    if (rank == 0) CHECK(ticket->heard == others);
  });
}

TEST(tickets, count_what_the_library_moves_and_not_their_own_messages) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto moves = tickets.make(rank);
    if (rank == 0) moves->moved = {{1, true, 8}, {1, true, 8}, {1, false, 32}};
    CHECK_EQ(run_call(engine, on_device(engine, "x", moves)).text, "");
  });
  const auto edges_of = [&](int rank) {
    return world.engine(rank).stats().peers[0].edges;
  };
  REQUIRE(edges_of(0).size() == 1);
  const EdgeStats edge = edges_of(0)[0].second;
  CHECK_EQ(edge.messages_sent, 2U);
  CHECK_EQ(edge.bytes_sent, 16U);
  CHECK_EQ(edge.messages_received, 1U);
  CHECK_EQ(edge.bytes_received, 32U);
  for (const auto& [kind, other] : edges_of(1)) CHECK_EQ(other.messages_sent, 0U);
  CHECK(world.engine(0).stats().peers[0].channel.messages_sent > 0);
}

TEST(tickets, record_the_bytes_of_their_input) {
  const TraceFile file;
  EngineWorld world(2, {}, [&](int rank) -> std::shared_ptr<Recorder> {
    if (rank != 0) return nullptr;
    return std::make_shared<Recorder>(file.path(), 1 << 16, 0, 2);
  });
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    CHECK_EQ(run_call(engine, on_device(engine, "x", tickets.make(rank))).text, "");
  });
  const std::vector<Event> calls = file.events(EventType::kEnqueue);
  REQUIRE(calls.size() == 1);
  CHECK_EQ(calls[0].b, 12U);
}

// Lets the rank `late` call when all others wait for it, or for the first member, which
// waits for it.
void call_late(EngineWorld& world, int late) {
  const auto waits = [&](int rank) {
    const std::vector<PendingRequest> pending = world.engine(rank).pending();
    const std::vector<int> awaited{rank == 0 ? late : 0};
    return !pending.empty() && pending[0].waiting_for == awaited;
  };
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    if (rank == late) {
      for (int other = 0; other < world.size(); ++other) {
        if (other != late) await([&] { return waits(other); });
      }
      std::this_thread::sleep_for(150ms);
    }
    CHECK_EQ(run_call(engine, on_device(engine, "x", tickets.make(rank))).text, "");
  });
}

TEST(tickets, let_all_ranks_know_who_came_late) {
  for (const int late : {0, 2}) {
    EngineWorld world(4);
    call_late(world, late);
    for (int rank = 0; rank < world.size(); ++rank) {
      for (const PeerStats& peer : world.engine(rank).stats().peers) {
        double late_s = 0;
        for (const auto& [kind, edge] : peer.edges) late_s += edge.late_s;
        if (peer.rank == late) CHECK(late_s > 0.05);
        if (rank == late) CHECK_EQ(late_s, 0.0);  // it has waited for answers only
      }
    }
  }
}

TEST(tickets, calls_that_precede_them_match_one_another_only) {
  EngineWorld world(2);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(3);
    const auto make = [&](const char* name, bool precedes) {
      Call call = make_call(engine, Kind::kAllreduce, name, tensor, tensor);
      call.precedes_ticket = precedes;
      return call;
    };
    CHECK_EQ(run_call(engine, make("x", true)).text, "");
    check_failure(run_call(engine, make("y", rank == 0)), Code::kMismatch,
                  "goes through NCCL");
  });
}

TEST(tickets, are_preceded_by_calls_that_fail_on_all_ranks_if_two_disagree) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(2);
    // Rank 1 and the root disagree. Rank 2 exchanges nothing with rank 1.
    Call gather = make_call(engine, Kind::kGather, "x", tensor, {});
    gather.shape = {1, rank == 1 ? 1 : 2};
    if (rank == 1) gather.input = gather.input.first(4);
    gather.precedes_ticket = true;
    check_failure(run_call(engine, std::move(gather)), Code::kMismatch, "shape");

    Call ring = make_call(engine, Kind::kNeighborAllgather, "y", tensor, {});
    ring.shape = {1, rank == 1 ? 1 : 2};
    if (rank == 1) ring.input = ring.input.first(4);
    ring.precedes_ticket = true;
    if (rank != 0) {
      ring.sources = {{3 - rank, 1.0}};
      ring.destinations = {{3 - rank, 1.0}};
    }
    check_failure(run_call(engine, std::move(ring)), Code::kMismatch, "shape");

    std::vector<float> parts(3);
    Call scatter = make_call(engine, Kind::kScatter, "z", parts, {});
    scatter.root = rank == 1 ? 1 : 0;
    if (rank == scatter.root) {
      scatter.splits = {1, 1, 1};
    } else {
      scatter.shape = {0};
      scatter.input = {};
    }
    scatter.precedes_ticket = true;
    check_failure(run_call(engine, std::move(scatter)), Code::kMismatch, "root");
  });
}

TEST(tickets, end_when_the_library_has_taken_the_call) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank, false);
    const RequestId id = engine.submit(on_device(engine, "x", ticket));
    await([&] { return engine.done(id) || ticket->number() == 0; });
    CHECK(!engine.wait(id, Clock::now() + 20ms).has_value());
    CHECK_EQ(engine.pending().at(0).wish, "its GPU");
    ticket->take();
    CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
    engine.release(id);
  });
}

TEST(tickets, fail_with_the_library) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank, false);
    ticket->is_broken = true;
    const Status status = run_call(engine, on_device(engine, "x", ticket));
    check_failure(status, Code::kInternal, "the library failed");
    CHECK(ticket->has_failed());
  });
}

TEST(tickets, fail_while_they_wait_for_their_number) {
  EngineWorld world(2);
  Tickets tickets;
  const auto waiting = tickets.make(1, false);
  std::atomic<bool> has_failed{false};
  world.run([&](int rank, Engine& engine) {
    if (rank == 0) {
      await([&] { return world.engine(1).pending().size() == 1; });
      waiting->is_broken = true;
      await([&] { return has_failed.load(); });
    }
    const Status status =
        run_call(engine, on_device(engine, "x", rank == 0 ? tickets.make(0) : waiting));
    has_failed = true;
    check_failure(status, Code::kInternal, "the library failed");
  });
  CHECK_EQ(tickets.given(), 0);
}

TEST(tickets, fail_alike_on_all_ranks_if_the_first_gives_no_number) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank);
    ticket->cannot_answer = true;
    const Status status = run_call(engine, on_device(engine, "x", ticket));
    check_failure(status, Code::kPeerLost, "the library has lost a rank");
    CHECK_EQ(status.rank, 0);
  });
}

TEST(tickets, of_calls_that_differ_get_no_number) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank);
    const Status status = run_call(engine, on_device(engine, "x", ticket, 3 + rank));
    check_failure(status, Code::kMismatch, "All ranks must pass the same shape");
    CHECK(ticket->has_failed());
    CHECK_EQ(run_call(engine, on_device(engine, "y", tickets.make(rank))).text, "");
  });
  CHECK_EQ(tickets.given(), 1);
}

TEST(tickets, do_not_match_calls_on_the_host) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    std::vector<float> tensor(3);
    Call call = rank == 0 ? on_device(engine, "x", tickets.make(rank))
                          : make_call(engine, Kind::kAllreduce, "x", tensor, tensor);
    const Status status = run_call(engine, std::move(call));
    check_failure(status, Code::kMismatch, "goes through NCCL");
  });
  CHECK_EQ(tickets.given(), 0);
}

TEST(tickets, with_offers_that_do_not_suit_fail_on_all_ranks) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank == 0 ? 0 : 7);
    const Status status = run_call(engine, on_device(engine, "x", ticket));
    check_failure(status, Code::kMismatch, "the offers do not suit");
  });
  CHECK_EQ(tickets.given(), 0);
}

TEST(tickets, expire_while_the_library_does_not_take_the_call) {
  EngineWorld world(2);
  Tickets tickets;
  world.run([&](int rank, Engine& engine) {
    const auto ticket = tickets.make(rank, false);
    Call call = on_device(engine, "x", ticket);
    call.deadline = Clock::now() + 20ms;
    const Status status = run_call(engine, std::move(call));
    CHECK(status.code == Code::kTimedOut);
    CHECK(ticket->has_failed());
  });
}

constexpr std::uint64_t kPair = 77;

// Counts what it is told.
class Failures final : public FailureWatcher {
 public:
  void note_lost(int rank, const std::string&) override {
    ++told;
    last = rank;
  }
  void note_failed_ticket(std::uint64_t, const Status& status) override {
    failed = status.code;
  }
  void note_removed_group(std::uint64_t group, const Status& status) override {
    removed_by = group == kPair && status.code == Code::kFreed ? status.rank : -1;
  }
  void note_failed_device(int rank, const std::string& reason) override {
    CHECK_EQ(reason, "the GPU is broken");
    broken_device = rank;
  }
  std::optional<Status> device_failure() const override {
    if (!is_broken) return std::nullopt;
    return Status{Code::kInternal, "the GPU is broken", -1};
  }
  bool is_working() const override { return true; }

  std::atomic<bool> is_broken{false};
  std::atomic<int> broken_device{-1};
  std::atomic<int> removed_by{-1};
  std::atomic<int> told{0};
  std::atomic<int> last{-1};
  std::atomic<Code> failed{Code::kOk};
};

TEST(failure_watchers, learn_of_calls_that_fail_elsewhere_after_their_end) {
  for (const bool shuts_down : {false, true}) {
    EngineWorld world(2);
    const auto failures = std::make_shared<Failures>();
    world.engine(0).watch_failures(failures);
    Tickets tickets;
    world.run([&](int rank, Engine& engine) {
      const auto ticket = tickets.make(rank, rank == 0);
      const RequestId id = engine.submit(on_device(engine, "x", ticket));
      if (rank == 0) {
        CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
        await([&] { return failures->failed != Code::kOk; });
        return;
      }
      await([&] { return engine.done(id) || ticket->number() == 0; });
      if (shuts_down) {
        engine.close(kDeadline);
      } else {
        ticket->is_broken = true;
        CHECK(!engine.wait(id, Clock::now() + kDeadline)->ok());
      }
    });
    CHECK(failures->failed == (shuts_down ? Code::kClosed : Code::kInternal));
  }
}

TEST(failure_watchers, learn_of_calls_that_fail_elsewhere_in_groups_removed_here) {
  EngineWorld world(2);
  const auto failures = std::make_shared<Failures>();
  world.engine(0).watch_failures(failures);
  Tickets tickets;
  std::atomic<bool> is_removed = false;
  world.run([&](int rank, Engine& engine) {
    engine.add_group(kPair, {0, 1}, {0, 0});
    const auto ticket = tickets.make(rank, rank == 0);
    Call call = on_device(engine, "x", ticket);
    call.group = engine.group(kPair);
    const RequestId id = engine.submit(std::move(call));
    if (rank == 0) {
      CHECK_EQ(engine.wait(id, Clock::now() + kDeadline)->text, "");
      engine.remove_group(kPair);
      is_removed = true;
      await([&] { return failures->failed != Code::kOk; });
      return;
    }
    await([&] { return is_removed.load(); });
    ticket->is_broken = true;
    CHECK(!engine.wait(id, Clock::now() + kDeadline)->ok());
  });
  CHECK(failures->failed == Code::kInternal);
}

TEST(failure_watchers, learn_of_groups_that_a_member_removes) {
  EngineWorld world(2);
  const auto failures = std::make_shared<Failures>();
  world.engine(0).watch_failures(failures);
  for (const int rank : {0, 1}) world.engine(rank).add_group(kPair, {0, 1}, {0, 0});
  world.engine(1).remove_group(kPair);
  await([&] { return failures->removed_by == 1; });
}

TEST(failure_watchers, do_not_learn_of_calls_that_awaited_a_member_without_the_group) {
  EngineWorld world(2);
  const auto failures = std::make_shared<Failures>();
  world.engine(0).watch_failures(failures);
  for (const int rank : {0, 1}) world.engine(rank).add_group(kPair, {0, 1}, {0, 0});
  Tickets tickets;
  Engine& engine = world.engine(1);
  Call call = on_device(engine, "x", tickets.make(1));
  call.group = engine.group(kPair);
  const RequestId id = engine.submit(std::move(call));
  world.engine(0).remove_group(kPair);
  CHECK(engine.wait(id, Clock::now() + kDeadline)->code == Code::kFreed);
  engine.remove_group(kPair);
  await([&] { return failures->removed_by == 1; });  // behind the ABORT of the call
  CHECK(failures->failed == Code::kOk);
}

TEST(failure_watchers, tell_other_ranks_of_a_failed_device_although_nothing_runs) {
  EngineWorld world(3);
  std::vector<std::shared_ptr<Failures>> watchers;
  for (int rank = 0; rank < 3; ++rank) {
    watchers.push_back(std::make_shared<Failures>());
    world.engine(rank).watch_failures(watchers.back());
  }
  watchers[1]->is_broken = true;
  for (const int rank : {0, 2}) {
    await([&] { return watchers[rank]->broken_device == 1; });
  }
  CHECK_EQ(watchers[1]->broken_device.load(), -1);
}

TEST(failure_watchers, learn_of_a_lost_rank_once_although_nothing_is_outstanding) {
  EngineWorld world(3);
  const auto losses = std::make_shared<Failures>();
  world.engine(0).watch_failures(losses);
  world.kill(2);
  await([&] { return losses->told > 0; });
  world.engine(0).peer_lost(2, "rank 2 was killed");
  CHECK_EQ(losses->told.load(), 1);
  CHECK_EQ(losses->last.load(), 2);
}

}  // namespace
}  // namespace bluecomm::test
