#include "stream/frame_parser.h"

#include <algorithm>
#include <string>
#include <vector>

#include "common/crc32c.h"
#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using Bytes = std::vector<std::byte>;

void append(Bytes& bytes, const Frame& frame, const std::string& payload = {}) {
  const auto head = std::as_bytes(std::span(&frame, 1));
  const auto tail = std::as_bytes(std::span(payload));
  bytes.insert(bytes.end(), head.begin(), head.end());
  bytes.insert(bytes.end(), tail.begin(), tail.end());
}

Frame chunk(std::size_t length, std::uint64_t offset) {
  return {.kind = FrameKind::kChunk,
          .length = static_cast<std::uint32_t>(length),
          .message = 1,
          .offset = offset};
}

// Receives chunks of one message into a buffer.
struct Payload final : FrameSink {
  explicit Payload(std::size_t nbytes) : memory(nbytes) {}
  Destination begin(const Frame& frame, std::size_t) override {
    if (frame.offset + frame.length > memory.size()) return {{}, "too far"};
    return {std::span(memory).subspan(frame.offset, frame.length), {}};
  }
  std::string_view end(const Frame&, std::size_t) override {
    ++frames;
    return {};
  }
  std::string text() const {
    return {reinterpret_cast<const char*>(memory.data()), memory.size()};
  }

  Bytes memory;
  int frames = 0;
};

std::string_view feed(FrameParser& parser, FrameSink& sink,
                      std::span<const std::byte> bytes, std::size_t piece) {
  while (!bytes.empty()) {
    std::size_t count = 0;
    for (const auto space : parser.spaces()) {
      const std::size_t part =
          std::min({space.size(), piece - count, bytes.size() - count});
      std::copy_n(bytes.begin() + static_cast<long>(count), part, space.begin());
      count += part;
    }
    bytes = bytes.subspan(count);
    if (const auto defect = parser.advance(count, sink); !defect.empty()) return defect;
  }
  return {};
}

TEST(stream_frame_parser, payloads_arrive_however_the_bytes_are_cut) {
  const std::string text = [] {
    std::string made;
    for (int i = 0; i < 3000; ++i) made += std::to_string(i);
    return made;
  }();
  Bytes bytes;
  append(bytes, {.kind = FrameKind::kGoodbye});
  for (std::size_t at = 0; at < text.size(); at += 640) {
    const std::string part = text.substr(at, 640);
    append(bytes, chunk(part.size(), at), part);
  }
  for (const std::size_t piece : {1, 23, 24, 25, 640, 700, 100'000}) {
    FrameParser parser(0);
    Payload payload(text.size());
    CHECK_EQ(feed(parser, payload, bytes, piece), "");
    CHECK_EQ(payload.frames, static_cast<int>((text.size() + 639) / 640) + 1);
    CHECK(payload.text() == text);
  }
}

TEST(stream_frame_parser, a_run_of_chunks_is_read_in_place) {
  FrameParser parser(0);
  Payload payload(kSmallChunk);
  Bytes bytes;
  append(bytes, chunk(kSmallChunk, 0));
  CHECK_EQ(feed(parser, payload, bytes, SIZE_MAX), "");
  CHECK(parser.spaces()[0].data() == payload.memory.data());
  CHECK_EQ(parser.spaces()[0].size(), kSmallChunk);
  CHECK(parser.spaces()[1].size() >= sizeof(Frame));
}

// A read that ended within a short message once read the rest of it and the begin of
// the next one only, and so did all reads after it.
TEST(stream_frame_parser, short_messages_are_read_many_at_a_time) {
  FrameParser parser(0);
  Payload payload(1024);
  Bytes bytes;
  append(bytes, chunk(1024, 0), std::string(100, 'a'));
  CHECK_EQ(feed(parser, payload, bytes, SIZE_MAX), "");
  const auto spaces = parser.spaces();
  CHECK(spaces[0].size() + spaces[1].size() >= 32 * (1024 + sizeof(Frame)));
}

TEST(stream_frame_parser, a_freed_buffer_is_not_written) {
  FrameParser parser(0);
  Payload payload(640);
  Bytes bytes;
  append(bytes, chunk(640, 0), std::string(100, 'a'));
  CHECK_EQ(feed(parser, payload, bytes, SIZE_MAX), "");
  parser.drop(2);
  CHECK(parser.spaces()[0].data() == payload.memory.data() + 100);
  parser.drop(1);
  Bytes rest;
  append(rest, {.kind = FrameKind::kGoodbye});
  rest.insert(rest.begin(), 540, std::byte{'b'});
  CHECK_EQ(feed(parser, payload, rest, 77), "");
  CHECK_EQ(payload.frames, 2);
  CHECK(payload.text() == std::string(100, 'a') + std::string(540, '\0'));
}

TEST(stream_frame_parser, errors_name_the_defect) {
  const std::vector<std::pair<Frame, std::string>> cases{
      {{}, "an unknown kind of frame"},
      {{.kind = static_cast<FrameKind>(99)}, "an unknown kind of frame"},
      {{.kind = FrameKind::kGrant, .flags = 1},
       "a control frame with a flag or a payload"},
      {{.kind = FrameKind::kGrant, .flags = 2}, "unknown flags"},
      {{.kind = FrameKind::kGrant, .reserved = 1}, "unknown flags"},
      {{.kind = FrameKind::kGrant, .length = 1},
       "a control frame with a flag or a payload"},
      {{.kind = FrameKind::kMessage, .length = 2u << 20}, "a message that is too long"},
      {{.kind = FrameKind::kMessage, .length = 256, .offset = UINT64_MAX},
       "a message of impossible length"},
      {{.kind = FrameKind::kChecksum, .message = 1}, "a malformed checksum frame"},
      {{.kind = FrameKind::kChecksum, .offset = 1ul << 32},
       "a malformed checksum frame"},
      {chunk(0, 0), "a chunk of wrong length"},
      {chunk(kSegment + 1, 0), "a chunk of wrong length"},
      {chunk(64, UINT64_MAX - 63), "a chunk at a wrong offset"},
      {chunk(64, 63), "a chunk at an odd offset"},
      {chunk(65, kSegment - 64), "a chunk across segments"},
      {chunk(64, 640), "too far"}};
  for (const auto& [frame, defect] : cases) {
    FrameParser parser(0);
    Payload payload(640);
    Bytes bytes;
    append(bytes, frame);
    CHECK_EQ(feed(parser, payload, bytes, SIZE_MAX), defect);
  }
}

// Returns the checksum of a frame, the frame, and its payload.
Bytes checked(const Frame& frame, const std::string& payload) {
  Frame checksum{.kind = FrameKind::kChecksum};
  checksum.offset = crc32c(std::as_bytes(std::span(payload)), crc32c(bytes_of(frame)));
  Bytes bytes;
  append(bytes, checksum);
  append(bytes, frame, payload);
  return bytes;
}

TEST(stream_frame_parser, frames_with_checksums_arrive_unchanged) {
  const std::string payload(100'000, 'c');
  for (const std::size_t piece : {1ul, 7ul, 1000ul, 1ul << 20}) {
    FrameParser parser(0);
    Payload sink(2 * payload.size());
    Bytes bytes = checked(chunk(payload.size(), 0), payload);
    const Bytes another = checked(chunk(64, 100'032), std::string(64, 'd'));
    bytes.insert(bytes.end(), another.begin(), another.end());
    CHECK_EQ(feed(parser, sink, bytes, piece), "");
    CHECK_EQ(sink.frames, 2);
    Bytes unchecked;
    append(unchecked, {.kind = FrameKind::kHeartbeat});
    CHECK_EQ(feed(parser, sink, unchecked, piece), "a frame without its checksum");
    CHECK_EQ(sink.text().substr(0, payload.size()), payload);
  }
}

TEST(stream_frame_parser, a_damaged_frame_is_never_complete) {
  const std::string payload(1000, 'c');
  const Bytes whole = checked(chunk(payload.size(), 0), payload);
  const std::size_t in_offset = sizeof(Frame) + 17;  // a byte of the chunk's offset
  for (const std::size_t at : {sizeof(Frame) - 8, in_offset, 2 * sizeof(Frame),
                               2 * sizeof(Frame) + 500, whole.size() - 1}) {
    FrameParser parser(0);
    Payload sink(100'000);
    Bytes bytes = whole;
    bytes[at] ^= std::byte{0x10};
    CHECK_EQ(feed(parser, sink, bytes, 100),
             "a frame that does not match its checksum");
    CHECK_EQ(sink.frames, 0);
  }
}

TEST(stream_frame_parser, a_checksum_applies_to_one_frame) {
  FrameParser parser(0);
  Payload sink(100);
  Bytes bytes;
  append(bytes, {.kind = FrameKind::kChecksum});
  append(bytes, {.kind = FrameKind::kChecksum});
  CHECK_EQ(feed(parser, sink, bytes, 100), "a checksum of a checksum");
}

}  // namespace
}  // namespace bluecomm::stream
