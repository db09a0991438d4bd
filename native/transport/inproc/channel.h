#pragma once

#include <memory>
#include <span>
#include <string>

#include "transport/channel.h"
#include "transport/inproc/inbox.h"
#include "transport/inproc/outbox.h"

namespace bluecomm::inproc {

// The channel from one rank of a hub to another.
class InprocChannel final : public Channel {
 public:
  InprocChannel(std::shared_ptr<Hub> hub, int rank, int peer);

  int peer() const override { return peer_; }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  std::unique_ptr<Outgoing> send_growing(const Header& header,
                                         std::span<const std::byte> payload) override {
    return outbox_.send_growing(header, payload);
  }
  void post(const Header& header, std::span<const std::byte> payload) override;
  bool shares_memory() const override { return hub_->options.shares_memory; }
  std::size_t lead() const override { return hub_->options.lead; }
  ChannelStats stats() const override;
  bool beat() override;
  std::uint64_t signs_of_life() const override;

  // Hands an event of this peer to the receiver.
  void dispatch(InprocEvent event, Receiver& receiver);
  // Copies chunks of accepted messages. Returns true if it copied any.
  bool poll() { return inbox_.poll(); }
  // Whether poll() would copy a chunk. The caller holds the hub's mutex.
  bool can_copy() const { return inbox_.can_copy(); }

  // Cuts the link. `text`, a sentence about this rank, tells the peer the reason.
  void drop(const std::string& text);
  void forget();
  void close() { outbox_.close(); }
  bool idle() const { return outbox_.idle(); }

 private:
  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const int peer_;
  Outbox outbox_;
  Inbox inbox_;
  bool reported_end_ = false;  // the receiver knows of the loss or the goodbye
};

}  // namespace bluecomm::inproc
