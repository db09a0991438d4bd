#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

// What travels on an established stream: frames, each a fixed head and `length` bytes.
//
// Stream 0 of a link carries everything that has an order (messages, control); chunks
// of large payloads travel on whichever stream has room. Both ends are little-endian.

namespace bluecomm::stream {

static_assert(std::endian::native == std::endian::little);

enum class FrameKind : std::uint8_t {
  kOpen = 1,         // the first of a stream, by the end that chooses: it is used
  kMessage = 2,      // what the owner of the link heads a message with, then the
                     // payload if it is eager; `offset` is the payload's length
  kChunk = 3,        // bytes [offset, offset + length) of an accepted payload
  kGrant = 4,        // the payload may be sent up to `offset`
  kDiscard = 5,      // the payload is not wanted
  kCredit = 6,       // `offset` bytes of eager messages have been freed
  kGrow = 7,         // the end that did not dial would like `offset` streams
  kGoodbye = 8,      // no messages follow, and `offset` chunks were sent in all
  kGoodbyeSeen = 9,  // everything up to the peer's goodbye has been received
  kHeartbeat = 10,   // nothing but that the process runs
  kExpected = 11,    // memory for a message that has not come yet: up to `offset` bytes
  kChecksum = 12,    // the CRC32C of the next frame on this stream, all of it; in
                     // `offset`. After the first one on a stream, each frame has one
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

// Of a kMessage: it counts against the eager credit of its sender.
inline constexpr std::uint8_t kCharged = 1;

// Payloads are cut at multiples of this only, so that no element is cut.
inline constexpr std::size_t kAlignment = 64;

// A receiver that takes views stores a payload in segments; no chunk crosses the border
// of two, so that what it shows is contiguous.
inline constexpr std::size_t kSegment = 256 << 10;

// Chunks when there are several streams: the smaller, the less a slow stream holds
// back.
inline constexpr std::size_t kSmallChunk = 64 << 10;
static_assert(kSegment % kSmallChunk == 0 && kSmallChunk % kAlignment == 0);

// The owner's part of a message, at most.
inline constexpr std::size_t kMaxHead = 1024;

inline std::span<const std::byte> bytes_of(const Frame& frame) {
  return std::as_bytes(std::span(&frame, 1));
}

// How many messages ahead of the last one may be expected.
inline constexpr std::size_t kMaxExpected = 64;

// Bytes of eager messages, heads included, that a receiver stores for one peer.
inline constexpr std::size_t kEagerCredit = 1 << 20;

// What is wrong with a frame by itself; empty if nothing.
inline std::string_view defect_of(const Frame& frame) {
  if (frame.reserved != 0 || frame.flags > kCharged) return "unknown flags";
  const bool plain = frame.flags == 0;
  switch (frame.kind) {
    case FrameKind::kMessage:
      if (frame.length > kMaxHead + kEagerCredit) return "too long a message";
      // A payload is addressed in memory; lengths beyond that are not sincere.
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
        return "a checksum that is none";
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
      return plain && frame.length == 0 ? "" : "a control frame with a payload";
  }
  return "an unknown kind of frame";
}

}  // namespace bluecomm::stream
