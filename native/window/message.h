#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "request/base_request.h"
#include "request/message_prefix.h"
#include "transport/channel.h"

// What ranks say to each other about windows.

namespace bluecomm {

enum class WindowAction : std::uint32_t {
  kPut = 1,     // weight * payload takes the place of what the sender left ...
  kAccumulate,  // ... is added to it
  kGet,         // asks for the own value
  kLock,        // asks for the mutex
  kCancel,      // of an earlier request, or: gives the mutex back
  kOpen,        // the sender has made the window, and has sent what it shares of it
  // The payload is memory of the sender that the receiver shares: the mailbox that it
  // writes, or the own value, which it reads as number `other` of `readers`.
  kShareMailbox,
  kShareValue,
  // Answers, which carry the number of the request.
  kDone,     // put or accumulate has its effect; the mutex is the asker's
  kValue,    // the own value
  kWaits,    // the mutex is held by rank `other`
  kRefused,  // the payload says why
};

inline bool is_answer(WindowAction action) { return action >= WindowAction::kDone; }

struct WindowMessage : MessagePrefix {
  WindowMessage() { type = MessageType::kWindow; }

  std::uint32_t epoch = 0;
  std::uint64_t window = 0;
  RequestId request = 0;  // the asker's number for the part of a request
  WindowAction action = WindowAction::kPut;
  std::int32_t other = -1;
  std::uint32_t readers = 0;
  double weight = 1.0;
  double p = 0.0;
  std::uint32_t carries_p = 0;
};
static_assert(sizeof(WindowMessage) <= sizeof(Header::envelope));
static_assert(std::is_trivially_copyable_v<WindowMessage>);

inline Header to_header(const WindowMessage& message, std::size_t nbytes) {
  Header header;
  header.nbytes = nbytes;
  std::memcpy(header.envelope.data(), &message, sizeof message);
  return header;
}

// Returns nothing for a message that no WindowService of this version can have written.
inline std::optional<WindowMessage> read_window_message(const Header& header) {
  WindowMessage message;
  std::memcpy(static_cast<void*>(&message), header.envelope.data(), sizeof message);
  const bool known = message.type == MessageType::kWindow &&
                     message.action >= WindowAction::kPut &&
                     message.action <= WindowAction::kRefused;
  if (!known) return std::nullopt;
  return message;
}

}  // namespace bluecomm
