#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "common/gate.h"

namespace bluecomm::test {

// A gate whose input the test writes in parts.
class GradualGate final : public Gate {
 public:
  std::optional<Status> poll() override {
    if (is_broken_) return Status{Code::kInternal, "the copy failed", -1};
    if (written_ < kAll) return std::nullopt;
    return Status{};
  }
  std::size_t written() override { return written_; }

  void write(std::size_t nbytes) { written_ = nbytes; }
  void finish() { written_ = kAll; }
  void break_off() { is_broken_ = true; }

 private:
  static constexpr std::size_t kAll = SIZE_MAX;
  std::atomic<std::size_t> written_{0};
  std::atomic<bool> is_broken_{false};
};

// An input of float32 in parts.
inline constexpr std::size_t kPart = 300'000;  // bytes, some of which fill no chunk
inline constexpr std::size_t kParts = 5;
inline constexpr std::size_t kCount = kPart * kParts / sizeof(float);

inline float part_value(int rank, std::size_t i) {
  return 1.0F / static_cast<float>(3 + 7 * rank + static_cast<int>(i % 1013));
}

}  // namespace bluecomm::test
