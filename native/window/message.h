#pragma once

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "request/base_request.h"
#include "request/message_prefix.h"
#include "transport/channel.h"

// The messages that ranks send each other about windows.

namespace bluecomm {

enum class WindowAction : std::uint32_t {
  kPut = 1,     // sets the value that the sender leaves to weight * payload
  kAccumulate,  // adds weight * payload to it
  kGet,         // asks for the receiver's own value
  kLock,        // asks for the receiver's mutex
  kCancel,      // cancels an earlier request, or gives the mutex back
  kOpen,        // the sender has created the window and sent its shared memory
  kAccepts,     // the sender has made a mailbox for the receiver and shared its memory
  // The payload is memory of the sender that the receiver maps: the mailbox that the
  // receiver writes, or the sender's own value, which the receiver reads as reader
  // `other` of `readers`.
  kShareMailbox,
  kShareValue,
  // Answers, which carry the id of the request.
  kDone,     // the put or accumulate has taken effect, or the asker holds the mutex
  kValue,    // the answering rank's own value
  kWaits,    // the mutex is held by rank `other`
  kRefused,  // the payload is the reason
};

inline bool is_answer(WindowAction action) { return action >= WindowAction::kDone; }

struct WindowMessage : MessagePrefix {
  WindowMessage() { type = MessageType::kWindow; }

  std::uint32_t epoch = 0;
  std::uint64_t window = 0;
  RequestId request = 0;  // the asker's id of the part; see WindowService
  WindowAction action = WindowAction::kPut;
  std::int32_t other = -1;
  std::uint32_t readers = 0;
  double weight = 1.0;
  double p = 0.0;
  std::uint32_t carries_p = 0;
  // For device values; see Window. `is_sum` of a kAccumulate says whether the back slot
  // has the sum with the pending value, and `was_published` of its kDone whether the
  // slot was published. `other` of a kDone is the back slot from now on.
  std::uint32_t is_sum = 0;
  std::uint32_t was_published = 1;
  std::uint64_t signal = 0;  // see Mailbox::Meta
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
