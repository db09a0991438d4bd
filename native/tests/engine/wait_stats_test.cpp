// The statistics and the trace of an engine's operations.
#include "request/wait_stats.h"

#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/trace/trace_file.h"

namespace bluecomm::test {
namespace {

EdgeStats edge_of(const Stats& stats, int peer, Kind kind) {
  for (const PeerStats& one : stats.peers) {
    if (one.rank != peer) continue;
    for (const auto& [of, edge] : one.edges) {
      if (of == request_kind(kind)) return edge;
    }
  }
  return {};
}

// Waits until the only operation of `engine` lacks nothing but the data of ranks from
// `rank` on.
void await_waiting(Engine& engine, int rank) {
  await([&] {
    const std::vector<PendingRequest> pending = engine.pending();
    return !pending.empty() && pending[0].waiting_for.front() == rank;
  });
}

TEST(wait_stats, counts_bytes_and_calls_by_kind_and_peer) {
  EngineWorld world(2);
  world.run([](int, Engine& engine) {
    std::vector<float> a(4, 1.0F);
    CHECK(run_call(engine, make_call(engine, Kind::kAllreduce, "a", a, a)).ok());
    CHECK(run_call(engine, make_call(engine, Kind::kAllreduce, "a", a, a)).ok());
    CHECK(run_call(engine, make_call(engine, Kind::kBarrier, "b", {}, {})).ok());
  });
  const Stats stats = world.engine(0).stats();
  REQUIRE(stats.kinds.size() == 2);
  CHECK(stats.kinds[0].first == request_kind(Kind::kAllreduce));
  CHECK_EQ(stats.kinds[0].second.calls, 2U);
  CHECK_EQ(stats.kinds[0].second.failures, 0U);
  CHECK(stats.kinds[0].second.duration_s > 0);
  const EdgeStats edge = edge_of(stats, 1, Kind::kAllreduce);
  CHECK(edge.messages_sent >= 2);
  CHECK_EQ(edge.bytes_sent, 32U);
  CHECK_EQ(edge.bytes_received, 32U);
  CHECK_EQ(edge_of(stats, 1, Kind::kBarrier).bytes_sent, 0U);
  CHECK(edge_of(stats, 1, Kind::kBarrier).messages_sent > 0);

  world.engine(0).reset_stats();
  const Stats fresh = world.engine(0).stats();
  CHECK(fresh.kinds.empty());
  REQUIRE(fresh.peers.size() == 1);
  CHECK(fresh.peers[0].edges.empty());
  CHECK_EQ(fresh.peers[0].channel.messages_sent, 0U);
}

TEST(wait_stats, counts_a_wait_for_the_one_who_came_last) {
  EngineWorld world(3);
  world.run([&](int rank, Engine& engine) {
    std::vector<float> a(4, 1.0F);
    // Each rank calls a while after rank 0 has begun to wait for it.
    if (rank > 0) await_waiting(world.engine(0), rank);
    if (rank > 0) std::this_thread::sleep_for(rank * 150ms);
    CHECK(run_call(engine, make_call(engine, Kind::kAllreduce, "a", a, a)).ok());
  });
  const Stats stats = world.engine(0).stats();
  const EdgeStats last = edge_of(stats, 2, Kind::kAllreduce);
  CHECK(last.late_s > 0.1);
  CHECK(last.wait_s >= last.late_s);
  // Peers are late from submit() on; the program begins to wait a moment later.
  CHECK(stats.kinds[0].second.blocked_s > 0.1);
  const double waited = edge_of(stats, 1, Kind::kAllreduce).wait_s + last.wait_s;
  CHECK(waited <= stats.kinds[0].second.duration_s);
}

TEST(wait_stats, counts_failures) {
  EngineWorld world(2);
  std::vector<float> a(4, 1.0F);
  Engine& engine = world.engine(0);
  Call call = make_call(engine, Kind::kAllreduce, "a", a, a);
  call.deadline = Clock::now() + 10ms;
  CHECK(run_call(engine, std::move(call)).code == Code::kTimedOut);
  const Stats stats = engine.stats();
  REQUIRE(stats.kinds.size() == 1);
  CHECK_EQ(stats.kinds[0].second.failures, 1U);
  CHECK_EQ(edge_of(stats, 1, Kind::kAllreduce).bytes_sent, 0U);
}

TEST(wait_stats, records_the_life_of_an_operation) {
  const TraceFile file;
  EngineWorld world(2, {}, [&](int rank) -> std::shared_ptr<Recorder> {
    if (rank != 0) return nullptr;
    return std::make_shared<Recorder>(file.path(), 1 << 16, 0, 2);
  });
  world.run([&](int rank, Engine& engine) {
    if (rank == 1) await_waiting(world.engine(0), 1);
    std::this_thread::sleep_for(rank * 20ms);
    std::vector<float> a(4, 1.0F);
    CHECK(run_call(engine, make_call(engine, Kind::kAllreduce, "a", a, a)).ok());
  });
  REQUIRE(file.events(EventType::kEnqueue).size() == 1);
  REQUIRE(file.events(EventType::kOperation).size() == 1);
  REQUIRE(file.events(EventType::kHeader).size() == 1);
  REQUIRE(file.events(EventType::kLate).size() == 1);
  REQUIRE(file.events(EventType::kEdge).size() == 1);
  CHECK_EQ(file.events(EventType::kBlocked).size(), 1U);
  const Event call = file.events(EventType::kEnqueue)[0];
  const Event whole = file.events(EventType::kOperation)[0];
  const Event header = file.events(EventType::kHeader)[0];
  const Event wait = file.events(EventType::kLate)[0];
  const Event edge = file.events(EventType::kEdge)[0];
  CHECK_EQ(call.b, 16U);
  CHECK_EQ(call.operation, whole.operation);
  CHECK_EQ(call.name, whole.name);
  CHECK(whole.begin_ns <= wait.begin_ns && wait.end_ns <= whole.end_ns);
  CHECK(wait.end_ns - wait.begin_ns > 10'000'000);
  CHECK_EQ(wait.peer, 1);
  CHECK_EQ(header.peer, 1);
  CHECK_EQ(edge.peer, 1);
  CHECK_EQ(edge.a, 16U);
  CHECK_EQ(edge.b, 16U);
}

}  // namespace
}  // namespace bluecomm::test
