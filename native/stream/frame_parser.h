#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>

#include "stream/record_cipher.h"
#include "stream/wire.h"

namespace bluecomm::stream {

// The defect of a frame or payload that does not match its tag.
inline constexpr std::string_view kNotAuthentic =
    "bytes that the peer did not send have arrived (changed, repeated, left out or "
    "reordered on their way), so the link is not safe";

// Receives the frames of a parser. A non-empty defect is an error text and ends the
// link.
class FrameSink {
 public:
  struct Destination {
    std::span<std::byte> into;  // frame.length bytes, or empty to drop the payload
    std::string_view defect;
  };

  virtual ~FrameSink() = default;
  // Called when a frame with a payload begins; returns where to put the payload.
  virtual Destination begin(const Frame& frame, std::size_t stream) = 0;
  // Called when a frame is complete. Returns a defect, or nothing.
  virtual std::string_view end(const Frame& frame, std::size_t stream) = 0;
};

// Cuts the bytes of one stream into frames. The parser does not read the socket: its
// owner calls spaces(), reads into them and calls advance(). Payloads are read directly
// into their destination, except for the bytes that arrive together with the head of
// their frame. A frame that follows a kChecksum frame is verified before it counts as
// complete. After the first checksum on a stream, every frame must have one. With a
// cipher, payloads are opened in place when they are complete, before end() is called.
class FrameParser {
 public:
  // If `opener` is not null, it opens the records of frames and payloads; it must
  // outlive the parser.
  explicit FrameParser(std::size_t stream, DirectionCipher* opener = nullptr)
      : stream_(stream), opener_(opener), tag_nbytes_(opener ? kTagNbytes : 0) {}

  // Where to read the next bytes: into the first span, then the second. At least one is
  // not empty.
  std::array<std::span<std::byte>, 2> spaces();

  // Parses `nbytes` that were read into spaces(). Returns a defect, or nothing. After a
  // defect the parser must no longer be used.
  std::string_view advance(std::size_t nbytes, FrameSink& sink);

  // The destination of `message` is about to be freed: drops the rest of a chunk for
  // it.
  void drop(std::uint64_t message);

 private:
  static constexpr std::size_t kBufferSize = 64 << 10;
  // Bytes to read beyond the current payload: enough for the head of the next frame,
  // and few enough that in a run of chunks almost nothing is copied. Payloads shorter
  // than kShort are read together with others, because copying one costs less than
  // another call of the kernel.
  static constexpr std::size_t kTail = 512;
  static constexpr std::size_t kShort = 8 << 10;

  std::string_view parse(FrameSink& sink);
  std::string_view start(FrameSink& sink);
  std::string_view finish_payload(FrameSink& sink);
  std::string_view finish(FrameSink& sink);

  std::size_t stream_;
  DirectionCipher* opener_;  // or null
  std::size_t tag_nbytes_;   // after each record
  std::unique_ptr<std::byte[]> buffer_ =
      std::make_unique_for_overwrite<std::byte[]>(kBufferSize);
  std::size_t begin_ = 0;  // [begin_, end_) of buffer_ is not parsed yet
  std::size_t end_ = 0;
  Frame frame_;
  bool in_payload_ = false;  // frame_ has a payload that is not finished
  std::size_t missing_ = 0;  // payload bytes of frame_ that have not arrived
  std::optional<std::uint32_t>
      expected_;                      // CRC32C that frame_ (or the next one) must have
  std::uint32_t seen_ = 0;            // CRC32C of the part of frame_ that has arrived
  bool checked_ = false;              // a checksum has arrived on this stream
  std::span<std::byte> destination_;  // of missing_ bytes, or empty to drop them
  std::span<std::byte> payload_;      // of frame_, or empty if it is dropped
};

}  // namespace bluecomm::stream
