#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

// The end that sends.
class SendComm final : public Comm {
 public:
  // Begins to connect to the listener of `handle`, through the card `device`. `count`:
  // of streams, if they are not set.
  SendComm(const ListenHandle& handle, const Device& device, const Settings& settings,
           std::shared_ptr<stream::StreamCount> count);

  const char* direction() const override { return "send"; }

  // Takes the mutex. True once the connection is there. Throws Failure if it never
  // will.
  bool advance_opening();

  // Takes the mutex. Starts a message; `payload` stays as it is until test() says that
  // the request is done. Null: too many requests are in flight. Throws Failure.
  Request* isend(std::span<const std::byte> payload, int tag);

 private:
  struct SendRequest : Request {
    std::optional<stream::SentMessage> message;
    std::size_t nbytes = 0;
    std::uint64_t frames_end = 0;  // of what was queued for it on stream 0
  };

  SendComm(const Identity& identity, const stream::Address& address);

  void on_message(std::unique_ptr<stream::ReceivedMessage> message) override;
  std::optional<std::size_t> finish(Request& request) override;
  bool idle() const override;

  std::array<SendRequest, kMaxRequests> requests_;
};

}  // namespace bluecomm::nccl_net
