#pragma once

#include <cstdint>
#include <cstring>
#include <span>

#include "stream/received_message.h"

namespace bluecomm::nccl_net {

// The kinds of messages on a connection.
enum class MessageKind : std::uint32_t {
  kBegin = 1,    // the sender's first message, without payload: opens the connection
  kData = 2,     // the payload of an isend
  kRefused = 3,  // from the receiver: it cannot receive a message
};

enum class Refusal : std::uint32_t {
  kTooLong = 1,  // the message is longer than the buffer posted for it
};

// The head of every message.
struct MessageHead {
  MessageKind kind{};
  std::uint32_t detail = 0;  // kData: NCCL's tag; kRefused: a Refusal
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
