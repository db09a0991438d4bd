// A WindowService whose peers fail.
#include <array>
#include <list>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/collectives/values.h"
#include "window/service.h"

namespace bluecomm::test {
namespace {

constexpr int kPeer = 1;
constexpr std::uint64_t kJob = 5;
constexpr std::uint32_t kEpoch = 2;
constexpr std::uint64_t kId = 7;

// Drops all messages.
class DeadChannel final : public Channel {
 public:
  int peer() const override { return kPeer; }
  std::unique_ptr<Outgoing> send(const Header&, std::span<const std::byte>) override {
    return std::make_unique<Unread>();
  }
  void post(const Header&, std::span<const std::byte>) override {}
  ChannelStats stats() const override { return {}; }

 private:
  class Unread final : public Outgoing {
   public:
    std::size_t released() const override { return 0; }
  };
};

class OnePeer final : public RequestPeers {
 public:
  Channel* channel(int rank) const override { return is_gone(rank) ? nullptr : &dead; }
  bool is_gone(int rank) const override { return rank == kPeer && gone; }
  std::optional<std::string> why_gone(int rank, Clock::time_point) const override {
    return is_gone(rank) && certain ? std::optional<std::string>("gone") : std::nullopt;
  }
  std::string describe_rank(int rank) const override {
    return "rank " + std::to_string(rank);
  }

  mutable DeadChannel dead;
  bool gone = false;
  bool certain = false;
};

// A message whose payload never arrives by transfer, but can be shared.
class Announced final : public Incoming {
 public:
  Announced(WindowMessage message, std::span<std::byte> payload) : payload_(payload) {
    header_ = to_header(message, payload.size());
  }
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte>) override {}
  std::span<const std::byte> readable() const override { return {}; }
  void consume(std::size_t) override {}
  std::size_t consumed() const override { return 0; }
  std::optional<SharedBytes> share() override { return SharedBytes{nullptr, payload_}; }

 private:
  const std::span<std::byte> payload_;
  Header header_;
};

class Rank {
 public:
  std::shared_ptr<Window> make_window() {
    WindowConfig config;
    config.id = kId;
    config.name = "x";
    config.dtype = DType::kFloat64;
    config.nbytes = sizeof(double);
    config.in_neighbors = {kPeer};
    config.out_neighbors = {kPeer};
    const std::vector<double> value{1.0};
    return std::make_shared<Window>(
        config, std::as_bytes(std::span(value)), [this](std::size_t) {
          memories_.emplace_back();
          return Window::Memory(&memories_.back().bytes, [](auto*) {});
        });
  }

  WindowService::RequestPtr get(const std::shared_ptr<Window>& window,
                                Clock::time_point deadline) {
    const auto request = std::make_shared<WindowRequest>(
        requests.next_id(), RequestKind::kWinGet, window, deadline);
    service.get(request, {{{kPeer, 1.0}}, false});
    return request;
  }

  void receive(WindowAction action, RequestId request,
               std::span<std::byte> payload = {}, int other = -1) {
    WindowMessage message;
    message.job = kJob;
    message.epoch = kEpoch;
    message.window = kId;
    message.action = action;
    message.request = request;
    message.other = other;
    std::unique_ptr<Incoming> incoming = std::make_unique<Announced>(message, payload);
    CHECK(service.take_message(kPeer, incoming));
  }

  void poll(Clock::time_point now = Clock::now()) {
    const std::vector<int> gone = peers.gone ? std::vector{kPeer} : std::vector<int>();
    service.poll(gone);
    for (const auto& request : requests.expired(now)) {
      request->expire();
    }
  }

  OnePeer peers;
  RequestTable requests;
  WaitStats stats{6, nullptr};
  WindowService service{0, kJob, kEpoch, peers, requests, stats};

 private:
  struct Memory {
    alignas(64) std::array<std::byte, 64 << 10> data;
    std::span<std::byte> bytes{data};
  };
  std::list<Memory> memories_;
};

TEST(window, a_lost_rank_leaves_work_until_its_mutex_is_released) {
  Rank rank;
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
  Rank rank;
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
  Rank rank;
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
  Rank rank;
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
  Rank rank;
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
  Rank rank;
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
  Rank rank;
  rank.receive(WindowAction::kOpen, 0);
  const auto window = rank.make_window();
  rank.service.open(window, Clock::time_point::max());
  rank.service.close("shut down");
  const auto request = std::make_shared<WindowRequest>(
      rank.requests.next_id(), RequestKind::kWinGet, window, Clock::time_point::max());
  rank.service.get(request, {{{kPeer, 1.0}, {kPeer, 1.0}}, false});
  CHECK_EQ(request->status().text, "win_get 'x' on rank 0: shut down");
  CHECK_EQ(rank.requests.completions(), 2U);
  CHECK(!rank.requests.outstanding());
}

TEST(window, messages_of_another_job_are_refused) {
  Rank rank;
  WindowMessage message;
  message.action = WindowAction::kOpen;
  message.job = kJob + 1;
  message.epoch = kEpoch;
  std::unique_ptr<Incoming> incoming =
      std::make_unique<Announced>(message, std::span<std::byte>());
  CHECK(!rank.service.take_message(kPeer, incoming));
  CHECK(incoming != nullptr);
}

}  // namespace
}  // namespace bluecomm::test
