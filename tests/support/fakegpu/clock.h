// Vector clocks: what an actor has seen of all others. Actor 0 is the host, and each
// stream is one more.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace fakegpu {

inline constexpr int kHost = 0;

class Clock {
 public:
  std::uint64_t of(int actor) const {
    const auto i = static_cast<std::size_t>(actor);
    return i < seen_.size() ? seen_[i] : 0;
  }

  std::uint64_t advance(int actor) {
    const auto i = static_cast<std::size_t>(actor);
    if (seen_.size() <= i) seen_.resize(i + 1);
    return ++seen_[i];
  }

  void join(const Clock& other) {
    if (seen_.size() < other.seen_.size()) seen_.resize(other.seen_.size());
    for (std::size_t i = 0; i < other.seen_.size(); ++i) {
      if (seen_[i] < other.seen_[i]) seen_[i] = other.seen_[i];
    }
  }

 private:
  std::vector<std::uint64_t> seen_;
};

}  // namespace fakegpu
