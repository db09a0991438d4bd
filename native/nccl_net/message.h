#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "stream/received_message.h"

namespace bluecomm::nccl_net {

// What heads every message on a connection.
enum class MessageKind : std::uint32_t {
  kBegin = 1,    // the sender's first, without payload: there is a connection
  kData = 2,     // the payload of an isend
  kRefused = 3,  // of the receiver: it cannot take what came
};

enum class Refusal : std::uint32_t {
  kTooLong = 1,  // the message is longer than what was posted for it
};

struct MessageHead {
  MessageKind kind{};
  std::uint32_t detail = 0;  // of kData: NCCL's tag; of kRefused: a Refusal
};
static_assert(sizeof(MessageHead) == 8);

inline std::span<const std::byte> bytes_of(const MessageHead& head) {
  return std::as_bytes(std::span(&head, 1));
}

inline MessageHead head_of(const stream::ReceivedMessage& message) {
  MessageHead head;
  std::memcpy(&head, message.head().data(), sizeof head);
  return head;
}

}  // namespace bluecomm::nccl_net
