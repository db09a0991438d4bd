#pragma once

#include <cstdint>

namespace bluecomm::test {

// A small generator, because a schedule draws few numbers (splitmix64).
class Dice {
 public:
  explicit Dice(std::uint64_t seed) : state_(seed) {}
  std::uint64_t next() {
    std::uint64_t value = (state_ += 0x9E3779B97F4A7C15ULL);
    value = (value ^ (value >> 30)) * 0xBF58476D1CE4E5B9ULL;
    value = (value ^ (value >> 27)) * 0x94D049BB133111EBULL;
    return value ^ (value >> 31);
  }
  // Returns a number in 0 .. limit - 1.
  int below(int limit) {
    return static_cast<int>(next() % static_cast<std::uint64_t>(limit));
  }
  bool one_in(int chances) { return chances > 0 && below(chances) == 0; }

 private:
  std::uint64_t state_;
};

}  // namespace bluecomm::test
