#pragma once

#include <algorithm>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "stream/frame_parser.h"

namespace bluecomm::fuzz {

// Records all frames with their payloads; drops the payload of every fourth message.
class FrameRecorder final : public stream::FrameSink {
 public:
  Destination begin(const stream::Frame& frame, std::size_t) override {
    if (frame.message % 4 == 3) return {};
    payload_.assign(frame.length, std::byte{0});
    return {payload_, {}};
  }
  std::string_view end(const stream::Frame& frame, std::size_t) override {
    log.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    log.append(reinterpret_cast<const char*>(payload_.data()), payload_.size());
    payload_.clear();
    return {};
  }

  std::string log;

 private:
  std::vector<std::byte> payload_;
};

// The result of a parser.
struct ParsedFrames {
  std::string log;     // of the FrameRecorder
  std::string defect;  // that ended the parsing, or empty
  bool operator==(const ParsedFrames&) const = default;
};

// Parses `bytes` in pieces of at most `piece` bytes.
inline ParsedFrames parse_frames(std::span<const std::byte> bytes, std::size_t piece,
                                 stream::DirectionCipher* opener = nullptr) {
  FrameRecorder recorder;
  stream::FrameParser parser(0, opener);
  std::string_view defect;
  while (!bytes.empty() && defect.empty()) {
    std::size_t count = 0;
    for (const auto space : parser.spaces()) {
      const std::size_t part =
          std::min({space.size(), bytes.size() - count, piece - count});
      if (part > 0) std::memcpy(space.data(), bytes.data() + count, part);
      count += part;
    }
    MUST(count > 0);
    bytes = bytes.subspan(count);
    defect = parser.advance(count, recorder);
  }
  return {std::move(recorder.log), std::string(defect)};
}

}  // namespace bluecomm::fuzz
