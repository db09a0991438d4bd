// The frames of a stream of bytes do not depend on how the stream is cut.
#include "fuzz/recorded_frames.h"

using namespace bluecomm;

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::size_t piece = 1 + input.byte();
  const auto bytes = input.take(size);
  const fuzz::ParsedFrames whole = fuzz::parse_frames(bytes, SIZE_MAX);
  MUST(fuzz::parse_frames(bytes, piece) == whole);
  MUST(fuzz::parse_frames(bytes, 1) == whole);
  return 0;
}
