#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "stream/wire.h"

namespace bluecomm::stream {

// What the owner of a parser does with frames. Text returned as a defect ends the link.
class FrameSink {
 public:
  struct Destination {
    std::span<std::byte> into;  // frame.length bytes, or none: the payload is dropped
    std::string_view defect;
  };

  virtual ~FrameSink() = default;
  // A frame with a payload begins.
  virtual Destination begin(const Frame& frame, std::size_t stream) = 0;
  // A frame is complete, and its payload in place.
  virtual std::string_view end(const Frame& frame, std::size_t stream) = 0;
};

// Cuts the bytes of one stream into frames. Reads no socket: its owner asks where the
// next bytes belong, puts some there, and says how many. Payloads land in their final
// place, but for the few bytes that arrive together with their frame. Frames that
// follow a checksum are compared with it before they count as complete; after the first
// that does, all have to.
class FrameParser {
 public:
  explicit FrameParser(std::size_t stream) : stream_(stream) {}

  // Where the next bytes go: first the one, then the other. Never both empty.
  std::array<std::span<std::byte>, 2> spaces();

  // `nbytes` have been put into spaces(). Returns what is wrong with them, or nothing;
  // after a defect the parser is not used again.
  std::string_view advance(std::size_t nbytes, FrameSink& sink);

  // Memory of `message` goes away: the rest of a chunk for it is dropped.
  void drop(std::uint64_t message);

 private:
  static constexpr std::size_t kBufferSize = 64 << 10;
  // Read beyond the payload at hand: room for the next frame's head, hardly more, so
  // that in a run of chunks next to nothing is copied twice.
  static constexpr std::size_t kTail = 512;

  std::string_view parse(FrameSink& sink);
  std::string_view start(FrameSink& sink);
  std::string_view finish(FrameSink& sink);

  std::size_t stream_;
  std::unique_ptr<std::byte[]> buffer_ =
      std::make_unique_for_overwrite<std::byte[]>(kBufferSize);
  std::size_t begin_ = 0;  // [begin_, end_) of buffer_ has arrived and is not parsed
  std::size_t end_ = 0;
  Frame frame_;
  std::size_t missing_ = 0;  // payload bytes of frame_ that have not arrived
  std::optional<std::uint32_t> expected_;  // CRC32C of the next frame, or of frame_ ...
  std::uint32_t seen_ = 0;                 // ... and of what has come of it
  bool checked_ = false;                   // there has been one
  std::span<std::byte> destination_;       // where they go; empty: nowhere
};

}  // namespace bluecomm::stream
