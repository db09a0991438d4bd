// Tests the life of requests in a RequestTable.
#include "request/request_table.h"

#include <memory>
#include <set>
#include <stdexcept>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/engine/engine_world.h"

namespace bluecomm::test {
namespace {

class FakeRequest final : public BaseRequest {
 public:
  FakeRequest(RequestId id, Clock::time_point deadline)
      : BaseRequest(id, RequestKind::kWinPut, 0, State::kRunning, deadline) {}

  std::string_view kind_name() const override { return "win_put"; }
  std::string_view name() const override { return "x"; }
  TraceFields trace_fields() const override { return {}; }
  bool holds_memory() const override { return is_read; }
  Awaited awaited() const override { return {}; }
  void abort(Status status) override { finish(std::move(status)); }
  void expire() override { finish({Code::kTimedOut, "late", -1}); }
  void finish(Status status) override {
    status_ = std::move(status);
    state_ = State::kDone;
  }

  bool is_read = false;
};

struct Table {
  std::shared_ptr<FakeRequest> add(
      Clock::time_point deadline = Clock::time_point::max()) {
    auto request = std::make_shared<FakeRequest>(requests.next_id(), deadline);
    requests.add(request);
    return request;
  }
  void end(FakeRequest& request) {
    request.finish({});
    requests.end(request);
  }

  RequestTable requests;
};

using Ids = std::vector<RequestId>;

TEST(request_table, ids_are_unique_over_threads) {
  RequestTable requests;
  std::vector<Ids> ids(4, Ids(1000));
  std::vector<std::thread> threads;
  for (Ids& mine : ids) {
    threads.emplace_back([&] {
      for (RequestId& id : mine) id = requests.next_id();
    });
  }
  for (std::thread& thread : threads) thread.join();
  std::set<RequestId> all;
  for (const Ids& mine : ids) all.insert(mine.begin(), mine.end());
  CHECK_EQ(all.size(), 4000U);
  CHECK(!all.contains(0));
}

TEST(request_table, a_request_is_active_until_it_ends_and_known_until_its_release) {
  Table table;
  const auto first = table.add();
  const auto second = table.add();
  CHECK(table.requests.at(first->id()) == first);
  CHECK_THROWS(table.requests.release(first->id()), std::invalid_argument,
               "cannot be released before it has ended");
  table.end(*first);
  CHECK_EQ(table.requests.completions(), 1U);
  CHECK(table.requests.oldest() == second.get());
  CHECK(table.requests.take_finished() == Ids{first->id()});
  CHECK(table.requests.take_finished().empty());
  CHECK(table.requests.release(first->id()));
  CHECK_THROWS(table.requests.at(first->id()), std::invalid_argument, "is unknown");
  table.end(*second);
  CHECK(table.requests.release(second->id()));
  CHECK(table.requests.take_finished().empty());  // because it has been released
  CHECK(!table.requests.outstanding());
}

TEST(request_table, memory_that_is_read_is_reported_later) {
  Table table;
  for (const bool released_first : {true, false}) {
    const auto request = table.add();
    request->is_read = true;
    table.end(*request);
    CHECK(table.requests.held() == Ids{request->id()});
    if (released_first) CHECK(!table.requests.release(request->id()));
    table.requests.check_held();
    CHECK(table.requests.take_finished().empty());
    request->is_read = false;
    table.requests.check_held();
    CHECK(!table.requests.has_held());
    CHECK(table.requests.take_finished() == Ids{request->id()});
    if (!released_first) CHECK(table.requests.release(request->id()));
  }
}

TEST(request_table, only_watched_requests_are_queued_when_they_end) {
  Table table;
  CompletionQueue& queue = table.requests.completion_queue();
  const auto other = table.add();
  const auto first = table.add();
  const auto second = table.add();
  CHECK(table.requests.watch(first->id()));
  CHECK(table.requests.watch(second->id()));
  CHECK(table.requests.watch(second->id()));  // reported once nevertheless
  for (const auto& request : {other, second, first}) table.end(*request);
  CHECK(queue.take() == Ids({second->id(), first->id()}));
  CHECK(queue.take() == Ids());
  CHECK(!table.requests.watch(first->id()));
  table.requests.release(first->id());
  CHECK_THROWS(table.requests.watch(first->id()), std::invalid_argument, "is unknown");
  CHECK(queue.take() == Ids());
}

TEST(request_table, released_requests_are_not_reported_whatever_their_order) {
  Table table;
  std::vector<std::shared_ptr<FakeRequest>> all;
  for (int i = 0; i < 1000; ++i) all.push_back(table.add());
  for (const auto& request : all) table.end(*request);
  for (int i = 0; i < 998; ++i) CHECK(table.requests.release(all[i]->id()));
  CHECK(table.requests.take_finished() == Ids({all[998]->id(), all[999]->id()}));
  CHECK(table.requests.take_finished().empty());
}

TEST(request_table, active_requests_stay_in_order_whichever_ends) {
  Table table;
  std::vector<std::shared_ptr<FakeRequest>> left;
  for (int i = 0; i < 6; ++i) left.push_back(table.add());
  for (const std::size_t ends : {2U, 4U, 0U, 0U, 1U, 0U}) {
    table.end(*left[ends]);
    left.erase(left.begin() + static_cast<std::ptrdiff_t>(ends));
    if (ends == 4U) left.push_back(table.add());
    Ids expected;
    Ids active;
    for (const auto& request : left) expected.push_back(request->id());
    table.requests.for_each_active(
        [&](const BaseRequest& request) { active.push_back(request.id()); });
    CHECK(active == expected);
    CHECK(table.requests.outstanding() == !left.empty());
  }
}

TEST(request_table, deadlines_are_extended_and_put_off) {
  Table table;
  const Clock::time_point now = Clock::now();
  const auto soon = table.add(now + 1s);
  const auto late = table.add(now + 100s);
  CHECK(table.requests.next_deadline() == now + 1s);
  table.requests.extend_deadline(soon->id(), 10s);
  table.requests.extend_deadline(late->id(), 10s);
  CHECK(soon->deadline() >= now + 10s);
  CHECK(late->deadline() == now + 100s);  // an extension never shortens
  table.requests.put_off_deadlines(5s);
  CHECK(late->deadline() == now + 105s);
  CHECK(table.requests.expired(now + 60s) ==
        std::vector<RequestTable::RequestPtr>{soon});
  table.end(*soon);
  CHECK(table.requests.expired(now + 60s).empty());
  CHECK(table.requests.next_deadline() == now + 105s);
}

TEST(request_table, the_next_deadline_follows_its_requests) {
  Table table;
  const Clock::time_point now = Clock::now();
  CHECK(table.requests.next_deadline() == Clock::time_point::max());
  const auto first = table.add(now + 3s);
  const auto second = table.add(now + 2s);
  const auto third = table.add(now + 4s);
  CHECK(table.requests.next_deadline() == now + 2s);
  table.end(*third);
  CHECK(table.requests.next_deadline() == now + 2s);
  table.end(*second);
  CHECK(table.requests.expired(now + 2s).empty());
  CHECK(table.requests.next_deadline() == now + 3s);
  CHECK(table.requests.expired(now + 3s) ==
        std::vector<RequestTable::RequestPtr>{first});
  const auto fourth = table.add(now + 1s);
  CHECK(table.requests.next_deadline() == now + 1s);
  table.end(*fourth);
  table.end(*first);
  CHECK(table.requests.next_deadline() == Clock::time_point::max());
}

}  // namespace
}  // namespace bluecomm::test
