#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// The wire format of an established stream: frames, each a fixed head and `length`
// bytes of payload. Both ends are little-endian.
//
// Stream 0 of a link carries all frames that have an order (messages and control
// frames). Chunks of large payloads travel on whichever stream has room.

namespace bluecomm::stream {

static_assert(std::endian::native == std::endian::little);

enum class FrameKind : std::uint8_t {
  kOpen = 1,         // first frame of a stream: the choosing end uses the stream
  kMessage = 2,      // head of a message, then the payload if it is eager; `offset` is
                     // the payload's length
  kChunk = 3,        // bytes [offset, offset + length) of an accepted payload
  kGrant = 4,        // the payload may be sent up to `offset`
  kDiscard = 5,      // the receiver does not want the payload
  kCredit = 6,       // the receiver has freed `offset` bytes of eager messages
  kGrow = 7,         // the end that did not dial asks for `offset` streams in all
  kGoodbye = 8,      // no messages follow; `offset` chunks were sent in all
  kGoodbyeSeen = 9,  // everything up to the peer's goodbye was received
  kHeartbeat = 10,   // the process is alive
  kExpected = 11,    // a buffer of `offset` bytes waits for a message not sent yet
  kChecksum = 12,    // `offset` is the CRC32C of the next frame on this stream, payload
                     // included. After the first one, each frame must have one
};

struct Frame {
  FrameKind kind{};
  std::uint8_t flags = 0;
  std::uint16_t reserved = 0;
  std::uint32_t length = 0;
  std::uint64_t message = 0;  // number of the message in its direction, from 0
  std::uint64_t offset = 0;
};
static_assert(sizeof(Frame) == 24);

// Flag of a kMessage: it counts against the sender's credit. If the payload is not in
// the frame, the message is unsolicited: its chunks follow on stream 0, in order,
// without a grant.
inline constexpr std::uint8_t kCharged = 1;

// Payloads are cut at multiples of this, so that no element is cut.
inline constexpr std::size_t kAlignment = 64;

// A receiver without a buffer stores a payload in segments of this size. No chunk
// crosses a segment border, so that each view of the payload is contiguous.
inline constexpr std::size_t kSegment = 256 << 10;

// The size of chunks when there are several streams. Smaller chunks let a slow stream
// hold back less.
inline constexpr std::size_t kSmallChunk = 64 << 10;
static_assert(kSegment % kSmallChunk == 0 && kSmallChunk % kAlignment == 0);

// The most streams of a link.
inline constexpr int kMaxStreams = 16;

// The longest head of a message.
inline constexpr std::size_t kMaxHead = 1024;

inline std::span<const std::byte> bytes_of(const Frame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}

// How many messages ahead of the last one the receiver may announce a buffer for.
inline constexpr std::size_t kMaxExpected = 64;

// The bytes of eager and unsolicited messages, heads included, that a receiver stores
// for one peer, unless the sender has an Options::eager_credit of its own.
inline constexpr std::size_t kEagerCredit = 1 << 20;

// A receiver that would have to store more unsolicited bytes ends the link.
inline constexpr std::size_t kMaxUnsolicited = 64 << 20;

// Returns what is wrong with a frame on its own, or nothing.
inline std::string_view defect_of(const Frame& frame) {
  if (frame.reserved != 0 || frame.flags > kCharged) return "unknown flags";
  const bool plain = frame.flags == 0;
  switch (frame.kind) {
    case FrameKind::kMessage:
      if (frame.length > kMaxHead + kEagerCredit) return "a message that is too long";
      // No payload in memory is longer than this.
      return frame.offset <= PTRDIFF_MAX ? "" : "a message of impossible length";
    case FrameKind::kChunk:
      if (frame.length == 0 || frame.length > kSegment)
        return "a chunk of wrong length";
      if (frame.offset > UINT64_MAX - kSegment) return "a chunk at a wrong offset";
      if (frame.offset % kAlignment != 0) return "a chunk at an odd offset";
      if (frame.offset % kSegment + frame.length > kSegment) {
        return "a chunk across segments";
      }
      return plain ? "" : "unknown flags";
    case FrameKind::kChecksum:
      if (frame.message != 0 || frame.offset > UINT32_MAX) {
        return "a malformed checksum frame";
      }
      [[fallthrough]];
    case FrameKind::kOpen:
    case FrameKind::kGrant:
    case FrameKind::kDiscard:
    case FrameKind::kCredit:
    case FrameKind::kGrow:
    case FrameKind::kGoodbye:
    case FrameKind::kGoodbyeSeen:
    case FrameKind::kHeartbeat:
    case FrameKind::kExpected:
      return plain && frame.length == 0 ? ""
                                        : "a control frame with a flag or a payload";
  }
  return "an unknown kind of frame";
}

}  // namespace bluecomm::stream
