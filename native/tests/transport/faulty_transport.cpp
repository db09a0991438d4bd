// A transport that wraps another one and commits one fault, to prove that the
// conformance suite notices it.
#include "tests/transport/faulty_transport.h"

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace bluecomm::test {
namespace {

constexpr std::size_t kChunk = 64;

class EarlyOutgoing final : public Outgoing {
 public:
  EarlyOutgoing(std::unique_ptr<Outgoing> inner, std::size_t nbytes)
      : inner_(std::move(inner)), nbytes_(nbytes) {}

  std::size_t released() const override { return nbytes_; }

 private:
  std::unique_ptr<Outgoing> inner_;
  std::size_t nbytes_;
};

class FaultyIncoming final : public Incoming {
 public:
  FaultyIncoming(std::unique_ptr<Incoming> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  const Header& header() const override { return inner_->header(); }
  void accept(std::span<std::byte>) override { inner_->accept({}); }
  std::size_t consumed() const override { return consumed_; }

  std::span<const std::byte> readable() const override {
    const std::span<const std::byte> bytes = inner_->readable();
    if (committed_ || bytes.size() < 2 * kChunk) return bytes;
    if (fault_ == Fault::kLostChunk) return bytes.subspan(kChunk);
    if (copy_.empty()) {
      copy_.assign(bytes.begin(), bytes.end());
      std::swap_ranges(copy_.begin(), copy_.begin() + kChunk, copy_.begin() + kChunk);
    }
    return copy_;
  }

  void consume(std::size_t nbytes) override {
    const bool commit = !committed_ && inner_->readable().size() >= 2 * kChunk;
    committed_ |= commit;
    consumed_ += nbytes;
    inner_->consume(nbytes + (commit && fault_ == Fault::kLostChunk ? kChunk : 0));
  }

 private:
  std::unique_ptr<Incoming> inner_;
  const Fault fault_;
  bool committed_ = false;
  std::size_t consumed_ = 0;
  mutable std::vector<std::byte>
      copy_;  // the first readable() bytes, with two chunks swapped
};

class FaultyChannel final : public Channel {
 public:
  FaultyChannel(Channel& inner, Fault fault) : inner_(inner), fault_(fault) {}

  int peer() const override { return inner_.peer(); }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override {
    auto inner = inner_.send(header, payload);
    if (fault_ != Fault::kEarlyRelease) return inner;
    return std::make_unique<EarlyOutgoing>(std::move(inner), payload.size());
  }
  void post(const Header& header, std::span<const std::byte> payload) override {
    inner_.post(header, payload);
  }
  ChannelStats stats() const override { return inner_.stats(); }

 private:
  Channel& inner_;
  const Fault fault_;
};

class FaultyTransport final : public Transport, private Receiver {
 public:
  FaultyTransport(std::unique_ptr<Transport> inner, Fault fault)
      : inner_(std::move(inner)), fault_(fault) {}

  std::string_view name() const override { return inner_->name(); }
  std::string offer() const override { return inner_->offer(); }
  Channel& channel(int peer, std::string_view offer) override {
    auto& channel = channels_[peer];
    if (!channel) {
      channel = std::make_unique<FaultyChannel>(inner_->channel(peer, offer), fault_);
    }
    return *channel;
  }
  bool poll(Receiver& receiver) override {
    receiver_ = &receiver;
    return inner_->poll(*this);
  }
  int wait_fd() const override { return inner_->wait_fd(); }
  bool prepare_sleep() override { return inner_->prepare_sleep(); }
  void finish_sleep() override { inner_->finish_sleep(); }
  std::chrono::steady_clock::time_point next_timer() const override {
    return inner_->next_timer();
  }
  void forget(int peer) override { inner_->forget(peer); }
  void close() override { inner_->close(); }
  bool closed() const override { return inner_->closed(); }
  void abandon_after_fork() noexcept override { inner_->abandon_after_fork(); }

 private:
  void on_message(int peer, std::unique_ptr<Incoming> message) override {
    if (fault_ == Fault::kLostChunk || fault_ == Fault::kSwappedChunks) {
      message = std::make_unique<FaultyIncoming>(std::move(message), fault_);
    }
    receiver_->on_message(peer, std::move(message));
  }
  void on_lost(int peer, Status status) override {
    receiver_->on_lost(peer, std::move(status));
  }
  void on_goodbye(int peer) override { receiver_->on_goodbye(peer); }

  std::unique_ptr<Transport> inner_;
  const Fault fault_;
  Receiver* receiver_ = nullptr;
  std::map<int, std::unique_ptr<FaultyChannel>> channels_;
};

}  // namespace

std::unique_ptr<Transport> make_faulty(std::unique_ptr<Transport> transport,
                                       Fault fault) {
  return std::make_unique<FaultyTransport>(std::move(transport), fault);
}

}  // namespace bluecomm::test
