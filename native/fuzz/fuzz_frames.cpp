// The frames of a stream of bytes do not depend on how the stream is cut.
#include <cstring>
#include <string>
#include <vector>

#include "fuzz/fuzz.h"
#include "stream/frame_parser.h"

namespace {

using namespace bluecomm;
using namespace bluecomm::stream;

// Records all calls; drops every fourth message.
class FrameRecorder final : public FrameSink {
 public:
  Destination begin(const Frame& frame, std::size_t) override {
    if (frame.message % 4 == 3) return {};
    payload_.assign(frame.length, std::byte{0});
    return {payload_, {}};
  }
  std::string_view end(const Frame& frame, std::size_t) override {
    log.append(reinterpret_cast<const char*>(&frame), sizeof frame);
    log.append(reinterpret_cast<const char*>(payload_.data()), payload_.size());
    payload_.clear();
    return {};
  }

  std::string log;

 private:
  std::vector<std::byte> payload_;
};

// Parses `bytes` in pieces of at most `piece` bytes; returns the record.
std::string parse(std::span<const std::byte> bytes, std::size_t piece) {
  FrameRecorder recorder;
  FrameParser parser(0);
  while (!bytes.empty()) {
    std::size_t count = 0;
    for (const auto space : parser.spaces()) {
      const std::size_t part =
          std::min({space.size(), bytes.size() - count, piece - count});
      if (part > 0) std::memcpy(space.data(), bytes.data() + count, part);
      count += part;
    }
    MUST(count > 0);
    bytes = bytes.subspan(count);
    const auto defect = parser.advance(count, recorder);
    if (!defect.empty()) return recorder.log + std::string(defect);
  }
  return recorder.log;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t piece = 1 + input.byte();
  const auto bytes = input.take(size);
  const std::string whole = parse(bytes, SIZE_MAX);
  MUST(parse(bytes, piece) == whole);
  MUST(parse(bytes, 1) == whole);
  return 0;
}
