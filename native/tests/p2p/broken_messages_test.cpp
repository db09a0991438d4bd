// A PointService whose transport throws while it receives a message, or loses its end.
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "p2p/service.h"
#include "tests/check.h"

namespace bluecomm::test {
namespace {

constexpr int kSender = 1;
constexpr std::uint64_t kJob = 5;

// Keeps the actions of the messages that were posted.
class PostedActions final : public Channel {
 public:
  int peer() const override { return kSender; }
  std::unique_ptr<Outgoing> send(const Header&, std::span<const std::byte>) override {
    throw std::logic_error("nothing is sent here");
  }
  void post(const Header& header, std::span<const std::byte>) override {
    actions.push_back(read_point_message(header)->action);
  }
  ChannelStats stats() const override { return {}; }

  std::vector<PointAction> actions;
};

class OneSender final : public RequestPeers {
 public:
  Channel* channel(int) const override { return &posted; }
  bool is_gone(int) const override { return false; }
  bool is_dropped(int) const override { return false; }
  std::optional<std::string> why_gone(int, Clock::time_point) const override {
    if (!is_lost) return std::nullopt;
    return "rank 1 was killed";
  }
  std::string describe_rank(int rank) const override {
    return "rank " + std::to_string(rank);
  }

  mutable PostedActions posted;
  bool is_lost = false;
};

enum class BreaksMessages { kAccept, kFirstRead, kLaterRead };

class BreakingMessage final : public Incoming {
 public:
  BreakingMessage(const Header& header, BreaksMessages when)
      : header_(header), when_(when) {}
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte>) override {
    if (when_ == BreaksMessages::kAccept) throw std::runtime_error("broken");
  }
  std::span<const std::byte> readable() const override {
    if (when_ == BreaksMessages::kLaterRead && reads_++ == 0) return {};
    throw std::runtime_error("broken");
  }
  void consume(std::size_t) override {}
  std::size_t consumed() const override { return 0; }

 private:
  const Header header_;
  const BreaksMessages when_;
  mutable int reads_ = 0;
};

// A message whose payload does not arrive.
class EndlessMessage final : public Incoming {
 public:
  explicit EndlessMessage(const Header& header) : header_(header) {}
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte>) override {}
  std::span<const std::byte> readable() const override { return {}; }
  void consume(std::size_t) override {}
  std::size_t consumed() const override { return 0; }

 private:
  const Header header_;
};

PointCall receive_call(std::vector<float>& values) {
  PointCall call;
  call.kind = RequestKind::kRecv;
  call.peer = kSender;
  call.dtype = DType::kFloat32;
  call.shape = {2};
  call.memory = std::as_writable_bytes(std::span(values));
  call.deadline = Clock::time_point::max();
  return call;
}

// Rank 0, which has started a receive from the sender.
struct ReceivingRank {
  ReceivingRank() { service.start(receive_call(values), 1, std::nullopt); }
  const BaseRequest& receive() { return *requests.at(1); }

  OneSender peers;
  RequestTable requests;
  WaitStats stats{2, nullptr};
  const RemovedGroups removed{};
  std::vector<float> values = std::vector<float>(2);
  PointService service{0,       kJob,     0,     peers,
                       removed, requests, stats, [](int, const Status&) {}};
};

TEST(point_failures, a_receive_ends_without_the_reason_of_a_lost_sender) {
  for (const bool removes_group : {false, true}) {
    ReceivingRank rank;
    PointMessage message;
    message.job = kJob;
    message.action = PointAction::kUnsent;
    std::unique_ptr<Incoming> incoming =
        std::make_unique<EndlessMessage>(to_header(message, 8));
    CHECK(rank.service.take_message(kSender, incoming));
    const BaseRequest& receive = rank.receive();
    CHECK(!receive.done());
    if (removes_group) {
      rank.service.remove_group(0);
    } else {
      rank.peers.is_lost = true;
      const std::vector<int> gone{kSender};
      rank.service.poll(gone);
    }
    REQUIRE(receive.done());
    CHECK(receive.status().code == (removes_group ? Code::kFreed : Code::kPeerLost));
    CHECK(rank.peers.posted.actions.empty());
  }
}

TEST(point_failures, the_sender_learns_that_the_transport_failed) {
  for (const BreaksMessages when : {BreaksMessages::kAccept, BreaksMessages::kFirstRead,
                                    BreaksMessages::kLaterRead}) {
    ReceivingRank rank;
    PointMessage message;
    message.job = kJob;
    message.dtype = DType::kFloat32;
    message.count = 2;
    message.send = 4;
    std::unique_ptr<Incoming> incoming =
        std::make_unique<BreakingMessage>(to_header(message, 8), when);
    CHECK(rank.service.take_message(kSender, incoming));
    rank.service.poll({});
    const BaseRequest& receive = rank.receive();
    REQUIRE(receive.done());
    CHECK(receive.status().code == Code::kInternal);
    CHECK(receive.status().text.ends_with("broken"));
    CHECK(rank.peers.posted.actions == std::vector{PointAction::kDecline});
    CHECK(!rank.service.poll({}));
  }
}

}  // namespace
}  // namespace bluecomm::test
