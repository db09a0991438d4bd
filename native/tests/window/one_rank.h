#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "window/service.h"

// One rank with a WindowService, and a peer whose messages a test makes up.

namespace bluecomm::test {

inline constexpr int kPeer = 1;
inline constexpr std::uint64_t kJob = 5;
inline constexpr std::uint32_t kEpoch = 2;
inline constexpr std::uint64_t kId = 7;

// Keeps posts for the test, and drops all other messages.
class DeadChannel final : public Channel {
 public:
  int peer() const override { return kPeer; }
  std::unique_ptr<Outgoing> send(const Header&,
                                 std::span<const std::byte> payload) override {
    return std::make_unique<Unread>(takes ? payload.size() : 0);
  }
  void post(const Header& header, std::span<const std::byte>) override {
    posted.push_back(*read_window_message(header));
  }
  bool shares_memory() const override { return shares; }
  ChannelStats stats() const override { return {}; }

  std::vector<WindowMessage> posted;
  bool takes = false;  // messages are released at once
  bool shares = false;

 private:
  class Unread final : public Outgoing {
   public:
    explicit Unread(std::size_t released) : released_(released) {}
    std::size_t released() const override { return released_; }

   private:
    const std::size_t released_;
  };
};

class OnePeer final : public RequestPeers {
 public:
  Channel* channel(int rank) const override { return is_gone(rank) ? nullptr : &dead; }
  bool is_gone(int rank) const override { return rank == kPeer && gone; }
  bool is_dropped(int rank) const override { return rank == kPeer && dropped; }
  std::optional<std::string> why_gone(int rank, Clock::time_point) const override {
    return is_gone(rank) && certain ? std::optional<std::string>("gone") : std::nullopt;
  }
  std::string describe_rank(int rank) const override {
    return "rank " + std::to_string(rank);
  }

  mutable DeadChannel dead;
  bool gone = false;
  bool certain = false;
  bool dropped = false;  // in a job that survives losses
};

// A message of whose payload `arrived` bytes arrive by transfer. The payload can be
// shared, too.
class Announced final : public Incoming {
 public:
  Announced(WindowMessage message, std::span<std::byte> payload, std::size_t arrived)
      : payload_(payload), arrived_(arrived) {
    header_ = to_header(message, payload.size());
  }
  const Header& header() const override { return header_; }
  void accept(std::span<std::byte>) override {}
  std::span<const std::byte> readable() const override {
    return payload_.subspan(consumed_, arrived_ - consumed_);
  }
  void consume(std::size_t nbytes) override { consumed_ += nbytes; }
  std::size_t consumed() const override { return consumed_; }
  std::optional<SharedBytes> share() override { return SharedBytes{nullptr, payload_}; }

 private:
  const std::span<std::byte> payload_;
  const std::size_t arrived_;
  std::size_t consumed_ = 0;
  Header header_;
};

// Rank 0 and its service, with rank 1 as the only peer.
class WindowRank {
 public:
  explicit WindowRank(std::optional<WindowService::Survival> survival = {})
      : service(0, kJob, kEpoch, peers, requests, stats, std::move(survival)) {}

  // A window whose neighbor is the peer, or one of `ranks` ranks without edges.
  std::shared_ptr<Window> make_window(int ranks = 0) {
    WindowConfig config;
    config.ranks = ranks;
    config.id = kId;
    config.name = "x";
    config.dtype = DType::kFloat64;
    config.nbytes = sizeof(double);
    if (ranks == 0) config.in_neighbors = config.out_neighbors = {kPeer};
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

  WindowService::RequestPtr put(const std::shared_ptr<Window>& window,
                                std::span<const std::byte> x) {
    const auto request = std::make_shared<WindowRequest>(
        requests.next_id(), RequestKind::kWinPut, window, Clock::time_point::max());
    service.put(request, {x, {{kPeer, 1.0}}});
    return request;
  }

  void receive(WindowAction action, RequestId request,
               std::span<std::byte> payload = {}, int other = -1,
               std::size_t arrived = 0) {
    WindowMessage message;
    message.job = kJob;
    message.epoch = kEpoch;
    message.window = kId;
    message.action = action;
    message.request = request;
    message.other = other;
    message.readers = 1;
    std::unique_ptr<Incoming> incoming =
        std::make_unique<Announced>(message, payload, arrived);
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
  WindowService service;

 private:
  struct Memory {
    alignas(64) std::array<std::byte, 64 << 10> data;
    std::span<std::byte> bytes{data};
  };
  std::list<Memory> memories_;
};

}  // namespace bluecomm::test
