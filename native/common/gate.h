#pragma once

#include <cstddef>
#include <optional>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace bluecomm {

// Holds an operation back while its input is still being written, such as by a copy
// from a GPU. The dispatcher polls it under the progress lock.
class Gate {
 public:
  Gate() = default;
  Gate(const Gate&) = delete;
  Gate& operator=(const Gate&) = delete;
  virtual ~Gate() = default;

  // Returns nothing while the input is being written, and afterwards ok, or the reason
  // why it will never be complete. Does not block.
  virtual std::optional<Status> poll() = 0;

  // Returns how many of the first bytes of the input have been written, as far as the
  // gate knows: 0 unless the input is written in parts. Never decreases.
  virtual std::size_t written() { return 0; }
};

// The gate of an input that nobody writes, because its writer has failed at the start.
class FailedGate final : public Gate {
 public:
  explicit FailedGate(Status failure) : failure_(std::move(failure)) {}
  std::optional<Status> poll() override { return failure_; }

 private:
  const Status failure_;
};

// Why a request has failed whose gate is still closed at its deadline.
inline constexpr std::string_view kLateDevice =
    "the device has not finished in time what the program started before this call, so "
    "its tensor could not be copied to the host";

}  // namespace bluecomm
