#pragma once

#include <cstdint>
#include <cstring>

#include "transport/channel.h"

namespace bluecomm {

// The kind of a message, which decides how the rest of its header is read.
enum class MessageType : std::uint8_t {
  kData = 1,    // payload of an operation (engine/envelope.h)
  kAbort = 2,   // an operation has failed at the sender; the payload says why
  kWindow = 3,  // a request about a window, or its answer (window/message.h)
  kJoin = 4,    // the sender has joined (engine/joining.h)
  // The sender has called an operation in which the receiver, which has joined, must
  // take part; the payload is the shape, followed by the splits.
  kAnnounce = 5,
  kPoint = 6,    // a message between two ranks (p2p/message.h)
  kFailing = 7,  // an error ends the sender's program; the payload says which
  kMember = 8,   // about who is a member of the job (engine/member_service.h)
  // The sender has removed the group of the key, and sends nothing more for its calls.
  kGroupRemoved = 9,
  kDeviceFailed = 10,  // the sender's GPU has failed; the payload says how
};

// Returns whether the header is an Envelope.
constexpr bool is_operation_message(MessageType type) {
  return type == MessageType::kData || type == MessageType::kAbort ||
         type == MessageType::kJoin || type == MessageType::kAnnounce ||
         type == MessageType::kFailing || type == MessageType::kGroupRemoved ||
         type == MessageType::kDeviceFailed;
}

// The first bytes of each message's header.
struct MessagePrefix {
  std::uint64_t job = 0;  // hash of the job's name
  MessageType type = MessageType::kData;
};

inline MessageType type_of(const Header& header) {
  MessagePrefix prefix;
  std::memcpy(static_cast<void*>(&prefix), header.envelope.data(), sizeof prefix);
  return prefix.type;
}

}  // namespace bluecomm
