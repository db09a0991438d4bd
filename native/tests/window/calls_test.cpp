// Tests which neighbors a call reaches in shared memory, and which ones it asks.
#include "window/calls.h"

#include <algorithm>
#include <cstdlib>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"
#include "tests/trace/trace_file.h"
#include "tests/window/windows.h"

namespace bluecomm::test {
namespace {

constexpr int kShared = 1;
constexpr int kFar = 2;

// Stores the calls that it is asked to start.
class FakeHost final : public WindowHost {
 public:
  explicit FakeHost(std::shared_ptr<Recorder> recorder = nullptr)
      : stats(3, std::move(recorder)) {}

  RequestId next_request_id() override { return ++last_id; }
  WaitStats& wait_stats() override { return stats; }
  void start_put(std::shared_ptr<WindowRequest> request, const WindowPut& call,
                 bool is_blocking) override {
    started = std::move(request);
    put = call;
    blocking = is_blocking;
  }
  void start_get(std::shared_ptr<WindowRequest> request, const WindowGet& call,
                 bool is_blocking) override {
    started = std::move(request);
    get = call;
    blocking = is_blocking;
  }

  RequestId last_id = 0;
  WaitStats stats;
  std::shared_ptr<WindowRequest> started;
  std::optional<WindowPut> put;
  std::optional<WindowGet> get;
  bool blocking = false;
};

WindowConfig config_of(int rank, std::vector<int> neighbors) {
  WindowConfig config;
  config.id = 7;
  config.name = "x";
  config.rank = rank;
  config.dtype = DType::kFloat64;
  config.nbytes = sizeof(double);
  config.in_neighbors = neighbors;
  config.out_neighbors = std::move(neighbors);
  config.zero_init = true;
  return config;
}

// A window of rank 0 with two neighbors; only kShared shares its memory.
struct Windows {
  Windows() {
    const auto bytes = [](std::span<const std::byte> memory) {
      return SharedBytes{nullptr,
                         {const_cast<std::byte*>(memory.data()), memory.size()}};
    };
    mine->attach_mailbox(kShared, bytes(theirs->mailbox_memory(0)));
    mine->attach_value(kShared, bytes(theirs->published_memory()), 0, 1);
  }

  const std::vector<double> one{1.0};
  const std::vector<double> two{2.0};
  const std::shared_ptr<Window> theirs = std::make_shared<Window>(
      config_of(kShared, {0}), bytes_of(two), allocate_aligned);
  const std::shared_ptr<Window> mine = std::make_shared<Window>(
      config_of(0, {kShared, kFar}), bytes_of(one), allocate_aligned);
};

EdgeStats edge_of(const WaitStats::Edges& edges, RequestKind kind) {
  const auto found = std::find_if(edges.begin(), edges.end(),
                                  [&](const auto& one) { return one.first == kind; });
  return found == edges.end() ? EdgeStats{} : found->second;
}

TEST(window_calls, a_put_into_shared_memory_asks_no_rank) {
  FakeHost host;
  Windows windows;
  const WindowPut call{bytes_of(windows.two), {{kShared, 3.0}}, false, true};
  CHECK_EQ(put(host, windows.mine, call, Clock::time_point::max(), true), 0U);
  CHECK(!host.started);
  std::vector<double> result(1);
  windows.theirs->update(std::as_writable_bytes(std::span(result)),
                         bytes_of(windows.two), {0.0, {{0, 1.0}}, false, true});
  CHECK_EQ(result[0], 6.0);
  CHECK_EQ(windows.theirs->p(), 3.0);
  const auto kinds = host.stats.kinds();
  REQUIRE(kinds.size() == 1);
  CHECK(kinds[0].first == RequestKind::kWinPut);
  CHECK_EQ(kinds[0].second.calls, 1U);
  CHECK_EQ(kinds[0].second.failures, 0U);
  const auto edges = host.stats.edges(kShared);
  CHECK_EQ(edge_of(edges, RequestKind::kWinPut).bytes_sent, 8U);
  CHECK_EQ(edge_of(edges, RequestKind::kWinPut).wait_s, 0.0);
}

TEST(window_calls, the_other_neighbors_are_asked) {
  FakeHost host;
  Windows windows;
  windows.mine->scale_p(0.5);
  const WindowPut call{
      bytes_of(windows.two), {{kShared, 1.0}, {kFar, 4.0}}, true, true};
  const auto deadline = Clock::now() + 5s;
  const RequestId id = put(host, windows.mine, call, deadline, true);
  REQUIRE(host.started != nullptr);
  CHECK_EQ(host.started->id(), id);
  CHECK(id != 0);
  CHECK(host.started->kind() == RequestKind::kWinAccumulate);
  CHECK_EQ(host.started->label(), "win_accumulate 'x' on rank 0");
  CHECK(host.started->deadline() == deadline);
  CHECK(!host.started->done());
  CHECK(host.put->targets == Window::Weights({{kFar, 4.0}}));
  CHECK(host.put->accumulates && host.put->with_p && host.blocking);
  CHECK_EQ(host.put->p, 0.5);
  CHECK(host.stats.kinds().empty());  // it has not ended
  CHECK_EQ(
      edge_of(host.stats.edges(kShared), RequestKind::kWinAccumulate).messages_sent,
      1U);
  CHECK(host.stats.edges(kFar).empty());
}

TEST(window_calls, published_sums_are_bytes_of_the_put) {
  const TraceFile file;
  FakeHost host(std::make_shared<Recorder>(file.path(), 1 << 16, 0, 3));
  Windows windows;
  WindowPut call{{}, {}, true};
  call.summed = {kShared};
  CHECK_EQ(put(host, windows.mine, call, Clock::time_point::max(), true), 0U);
  const auto edges = host.stats.edges(kShared);
  CHECK_EQ(edge_of(edges, RequestKind::kWinAccumulate).bytes_sent, 8U);
  REQUIRE(host.stats.kinds().size() == 1);
  CHECK_EQ(host.stats.kinds()[0].second.calls, 1U);
  REQUIRE(file.events(EventType::kOperation).size() == 1);
  REQUIRE(file.events(EventType::kEdge).size() == 1);
  CHECK_EQ(file.events(EventType::kCombine).size(), 1U);
  CHECK_EQ(file.events(EventType::kEdge)[0].operation,
           file.events(EventType::kOperation)[0].operation);
}

TEST(window_calls, a_get_reads_shared_values_and_asks_for_the_others) {
  FakeHost host;
  Windows windows;
  CHECK_EQ(get(host, windows.mine, {{{kShared, 2.0}}, false}, Clock::time_point::max(),
               true),
           0U);
  CHECK(!host.started);
  std::vector<double> result(1);
  windows.mine->update(std::as_writable_bytes(std::span(result)), bytes_of(windows.one),
                       {0.0, {{kShared, 1.0}}});
  CHECK_EQ(result[0], 4.0);
  const RequestId id = get(host, windows.mine, {{{kShared, 1.0}, {kFar, 1.0}}, true},
                           Clock::time_point::max(), false);
  REQUIRE(host.started != nullptr);
  CHECK_EQ(host.started->id(), id);
  CHECK(host.get->sources == Window::Weights({{kFar, 1.0}}));
  CHECK(host.get->with_p && !host.blocking);
  CHECK_EQ(edge_of(host.stats.edges(kShared), RequestKind::kWinGet).messages_received,
           2U);
}

TEST(window_calls, an_update_is_counted) {
  FakeHost host;
  Windows windows;
  std::vector<double> result(1);
  update(host, windows.mine, std::as_writable_bytes(std::span(result)),
         bytes_of(windows.one), {2.0, {}});
  CHECK_EQ(result[0], 2.0);
  REQUIRE(host.stats.kinds().size() == 1);
  CHECK(host.stats.kinds()[0].first == RequestKind::kWinUpdate);
}

// If the call took the progress lock, it would never return.
TEST(window_calls, shared_memory_needs_no_progress_lock) {
  EngineWorld world(2);
  Windows windows;
  const WindowPut call{bytes_of(windows.two), {{kShared, 1.0}}};
  world.engine(0).lock_for_fork();
  const RequestId id =
      put(world.engine(0), windows.mine, call, Clock::time_point::max(), true);
  world.engine(0).unlock_after_fork();
  CHECK_EQ(id, 0U);
}

}  // namespace
}  // namespace bluecomm::test
