#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "transport/channel.h"
#include "transport/inproc/wire.h"

namespace bluecomm::inproc {

// The messages from one rank to one peer.
class Outbox {
 public:
  Outbox(std::shared_ptr<Hub> hub, int rank, int peer);

  // Returns the Outgoing of a new message. A payload above the hub's eager_bytes stays
  // in the caller's memory.
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload);
  // See Channel::send_growing.
  std::unique_ptr<Outgoing> send_growing(const Header& header,
                                         std::span<const std::byte> payload);
  // Sends a copy of the payload.
  void post(const Header& header, std::span<const std::byte> payload);

  // Says goodbye if the link was used, and refuses new messages.
  void close();
  // Whether every message has been delivered, or the peer is gone.
  bool idle() const;

  std::size_t messages() const { return messages_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  enum class PayloadKind { kEager, kLarge, kGrowing };

  std::shared_ptr<InprocMessage> start(const Header& header,
                                       std::span<const std::byte> payload,
                                       PayloadKind kind);

  const std::shared_ptr<Hub> hub_;
  const int rank_;
  const int peer_;
  bool closing_ = false;
  std::vector<std::shared_ptr<InprocMessage>> undelivered_;
  std::size_t messages_ = 0;
  std::size_t nbytes_ = 0;
};

}  // namespace bluecomm::inproc
