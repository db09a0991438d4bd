// The helpers of all fuzz targets.
//
// A target is one file fuzz_<name>.cpp that defines LLVMFuzzerTestOneInput, with its
// initial inputs in corpus/<name>/. Linked with driver.cpp it is a program that g++
// builds:
//
//   fuzz_frames CORPUS... [--seconds 20] [--seed 1]    or, to reproduce a crash,
//   fuzz_frames crash-fuzz_frames
//
// With clang, link it with -fsanitize=fuzzer instead of driver.cpp.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <span>

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size);

// A property that no input may break.
#define MUST(condition)                                                      \
  do {                                                                       \
    if (!(condition)) {                                                      \
      std::fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__, \
                   #condition);                                              \
      std::abort();                                                          \
    }                                                                        \
  } while (false)

namespace bluecomm::fuzz {

// Reads values from an input. Beyond its end, all bytes are zero.
class Input {
 public:
  Input(const std::uint8_t* data, std::size_t size)
      : rest_(std::as_bytes(std::span(data, size))) {}

  bool empty() const { return rest_.empty(); }
  std::uint8_t byte() {
    const auto bytes = take(1);
    return bytes.empty() ? 0 : std::to_integer<std::uint8_t>(bytes[0]);
  }
  std::uint32_t number() {
    std::uint32_t value = 0;
    for (int i = 0; i < 4; ++i) value = value << 8 | byte();
    return value;
  }
  std::span<const std::byte> take(std::size_t count) {
    const auto taken = rest_.first(std::min(count, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }

 private:
  std::span<const std::byte> rest_;
};

}  // namespace bluecomm::fuzz
