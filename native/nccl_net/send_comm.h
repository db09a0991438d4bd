#pragma once

#include <array>
#include <memory>
#include <optional>
#include <span>

#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

// NCCL's send comm: the sending end of a connection.
class SendComm final : public Comm {
 public:
  // Starts to connect to the listener of `handle` through `device`. `count` decides how
  // many streams the connection opens if `settings` does not say.
  SendComm(const ListenHandle& handle, const Device& device, const Settings& settings,
           std::shared_ptr<stream::StreamCount> count);

  const char* direction() const override { return "send"; }

  // Returns whether the connection is open. Throws Failure if it cannot be opened.
  bool advance_opening() EXCLUDES(mutex);

  // Starts to send a message. The caller must not change `payload` until test() has
  // completed the request. Returns null if too many requests are in flight. Throws
  // Failure.
  CommRequest* isend(std::span<const std::byte> payload, int tag) EXCLUDES(mutex);

 private:
  struct SendRequest : CommRequest {
    std::optional<stream::SentMessage> message;
    std::size_t nbytes = 0;
    std::uint64_t frames_end = 0;  // position on stream 0 after the message's frames
  };

  SendComm(const Identity& identity, const stream::Address& address);

  void on_message(std::unique_ptr<stream::ReceivedMessage> message) override
      REQUIRES(mutex);
  std::optional<std::size_t> finish(CommRequest& request) override REQUIRES(mutex);
  bool idle() const override REQUIRES(mutex);

  std::array<SendRequest, kMaxRequests> requests_ GUARDED_BY(mutex);
};

}  // namespace bluecomm::nccl_net
