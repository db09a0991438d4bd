// A WindowService whose peers fail.
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/window/one_rank.h"
#include "window/service.h"

namespace bluecomm::test {
namespace {

TEST(window, a_lost_rank_leaves_work_until_its_mutex_is_released) {
  WindowRank rank;
  rank.receive(WindowAction::kOpen, 0);
  const auto window = rank.make_window();
  CHECK(rank.service.open(window, Clock::time_point::max())->done());
  rank.receive(WindowAction::kLock, 1);
  CHECK(window->mutex_queue.holder().has_value());
  CHECK(!rank.service.outstanding());
  rank.peers.gone = true;
  rank.poll();
  CHECK(window->mutex_queue.holder().has_value());
  CHECK(rank.service.outstanding());
  rank.peers.certain = true;
  rank.poll();
  CHECK(!window->mutex_queue.holder().has_value());
  CHECK(!rank.service.outstanding());
}

TEST(window, memory_shared_by_a_lost_rank_is_not_used) {
  WindowRank rank;
  std::vector<std::byte> theirs(64 << 10);
  rank.receive(WindowAction::kShareMailbox, 0, theirs);
  rank.receive(WindowAction::kOpen, 0);
  rank.peers.gone = true;
  rank.poll();
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  const std::vector<double> x{5.0};
  CHECK(!window->put_directly(kPeer, {std::as_bytes(std::span(x)), 1.0, false, {}}));
}

TEST(window, deadlines_are_put_off) {
  WindowRank rank;
  rank.receive(WindowAction::kOpen, 0);
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  const auto request = rank.get(window, deadline);
  rank.requests.put_off_deadlines(std::chrono::seconds(10));
  rank.poll(deadline + std::chrono::seconds(9));
  CHECK(!request->done());
  rank.poll(deadline + std::chrono::seconds(10));
  CHECK(request->done());
}

TEST(window, a_late_answer_leaves_no_work) {
  WindowRank rank;
  rank.receive(WindowAction::kOpen, 0);
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  const auto deadline = Clock::now() + std::chrono::seconds(1);
  const auto request = rank.get(window, deadline);
  std::vector<std::byte> theirs(sizeof(double));
  rank.receive(WindowAction::kValue, request->id(), theirs);
  rank.poll();
  CHECK(!request->done());
  rank.poll(deadline);
  CHECK_EQ(request->status().text,
           "win_get 'x' on rank 0: no answer from rank 1 within 1 s");
  CHECK(!rank.service.outstanding());
  CHECK(!rank.requests.outstanding());
}

TEST(window, a_request_names_the_ranks_that_it_waits_for) {
  WindowRank rank;
  const auto window = rank.make_window();
  const auto opened = rank.service.open(window, Clock::time_point::max());
  CHECK(opened->kind() == RequestKind::kWinCreate);
  CHECK_EQ(rank.service.awaited(*opened).wish, "to create the window");
  CHECK(rank.service.is_busy(*window));
  rank.receive(WindowAction::kOpen, 0);
  CHECK(opened->done());
  CHECK(!rank.service.is_busy(*window));

  const auto got = rank.get(window, Clock::time_point::max());
  CHECK_EQ(rank.service.awaited(*got).wish, "to answer");
  CHECK(rank.service.awaited(*got).ranks == std::set<int>{kPeer});
  rank.receive(WindowAction::kDone, got->id());
  CHECK(got->done());

  const auto locked = rank.service.lock(window, kPeer, Clock::time_point::max());
  constexpr int kHolder = 5;
  for (const int nobody : {kHolder + 1, -7}) {
    rank.receive(WindowAction::kWaits, locked->id(), {}, nobody);
    CHECK(rank.service.awaited(*locked).ranks == std::set<int>{kPeer});
  }
  rank.receive(WindowAction::kWaits, locked->id(), {}, kHolder);
  CHECK_EQ(rank.service.awaited(*locked).wish, "to release the mutex of rank 1");
  CHECK(rank.service.awaited(*locked).ranks == std::set<int>{kHolder});
  rank.receive(WindowAction::kDone, locked->id());
  CHECK(locked->done());
  CHECK(!rank.requests.outstanding());
}

TEST(window, waits_are_counted_for_the_awaited_rank) {
  WindowRank rank;
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  rank.receive(WindowAction::kOpen, 0);
  const auto got = rank.get(window, Clock::now());
  rank.poll(Clock::now() + std::chrono::seconds(1));
  CHECK(!got->status().ok());
  const WaitStats::Kinds kinds = rank.stats.kinds();
  REQUIRE(kinds.size() == 2);
  CHECK(kinds[0].first == RequestKind::kWinCreate);
  CHECK_EQ(kinds[0].second.failures, 0U);
  CHECK(kinds[1].first == RequestKind::kWinGet);
  CHECK_EQ(kinds[1].second.calls, 1U);
  CHECK_EQ(kinds[1].second.failures, 1U);
  const WaitStats::Edges edges = rank.stats.edges(kPeer);
  REQUIRE(edges.size() == 2);
  CHECK(edges[1].first == RequestKind::kWinGet);
  CHECK_EQ(edges[1].second.messages_received, 0U);
  CHECK(edges[1].second.wait_s > 0);
  rank.stats.reset();
  CHECK(rank.stats.kinds().empty());
  CHECK(rank.stats.edges(kPeer).empty());
}

TEST(window, a_closed_service_ends_each_request_once) {
  WindowRank rank;
  rank.receive(WindowAction::kOpen, 0);
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  rank.service.close(Code::kClosed, "shut down");
  const auto request = std::make_shared<WindowRequest>(
      rank.requests.next_id(), RequestKind::kWinGet, window, Clock::time_point::max());
  rank.service.get(request, {{{kPeer, 1.0}, {kPeer, 1.0}}, false});
  CHECK_EQ(request->status().text, "win_get 'x' on rank 0: shut down");
  CHECK_EQ(rank.requests.completions(), 2U);
  CHECK(!rank.requests.outstanding());
}

TEST(window, messages_of_another_job_are_refused) {
  WindowRank rank;
  WindowMessage message;
  message.action = WindowAction::kOpen;
  message.job = kJob + 1;
  message.epoch = kEpoch;
  std::unique_ptr<Incoming> incoming =
      std::make_unique<Announced>(message, std::span<std::byte>(), 0);
  CHECK(!rank.service.take_message(kPeer, incoming));
  CHECK(incoming != nullptr);
}

}  // namespace
}  // namespace bluecomm::test
