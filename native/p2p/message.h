#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "common/dtype.h"
#include "common/status.h"
#include "request/base_request.h"
#include "request/message_prefix.h"
#include "transport/channel.h"

// The messages of point-to-point communication; docs/data-plane.md describes the
// protocol.

namespace bluecomm {

enum class PointAction : std::uint8_t {
  kPayload = 1,  // the values of a send
  kCancel,       // the sender has given up its send; the payload says why
  kDecline,      // the receiver has not taken the values; the payload says why.
                 // Answered by a kCancel
  kTaken,        // `number` messages of the sender no longer wait for a receive
  kUnsent,       // takes the place of a kPayload that has not left the sender, because
                 // its send has failed; the payload says why
};

struct PointMessage : MessagePrefix {
  static constexpr std::size_t kMaxDims = 6;

  PointMessage() { type = MessageType::kPoint; }

  PointAction action = PointAction::kPayload;
  DType dtype = DType::kUInt8;
  std::uint8_t ndim = 0;  // for texts only: `dims` holds the first of `ndim` dimensions
  std::uint32_t epoch = 0;
  std::uint64_t group = 0;
  std::int64_t tag = 0;
  RequestId send = 0;        // the sender's id of its request
  std::uint64_t count = 0;   // elements
  std::uint64_t number = 0;  // of messages that the sender has sent to the receiver
  std::int32_t code = 0;     // kCancel, kDecline, kUnsent: a Code
  std::int32_t blamed = -1;  // Status::rank
  std::array<std::int64_t, kMaxDims> dims{};
};
static_assert(sizeof(PointMessage) <= sizeof(Header::envelope));
static_assert(std::is_trivially_copyable_v<PointMessage>);

inline Header to_header(const PointMessage& message, std::size_t nbytes) {
  Header header;
  header.nbytes = nbytes;
  std::memcpy(header.envelope.data(), &message, sizeof message);
  return header;
}

// Returns nothing for a message that no PointService of this version can have written.
inline std::optional<PointMessage> read_point_message(const Header& header) {
  PointMessage message;
  std::memcpy(static_cast<void*>(&message), header.envelope.data(), sizeof message);
  const bool known = message.type == MessageType::kPoint &&
                     message.action >= PointAction::kPayload &&
                     message.action <= PointAction::kUnsent &&
                     dtype_from_value(static_cast<std::uint8_t>(message.dtype)) &&
                     message.code >= static_cast<int>(Code::kOk) &&
                     message.code <= static_cast<int>(Code::kInternal);
  if (!known) return std::nullopt;
  const std::size_t item = item_size(message.dtype);
  const bool is_whole =
      message.count == header.nbytes / item && header.nbytes % item == 0;
  const bool is_text = header.nbytes <= Channel::kMaxPost;
  if (message.action == PointAction::kPayload ? !is_whole : !is_text) {
    return std::nullopt;
  }
  return message;
}

}  // namespace bluecomm
