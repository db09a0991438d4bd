#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include "common/status.h"

namespace bluecomm {

// Failures of operations that had already succeeded on this rank. The next operation
// that the program starts raises all of them; see docs/data-plane.md. Not thread-safe.
class LateFailures {
 public:
  void add(Status status) {
    if (count_++ == 0) first_ = std::move(status);
  }
  bool empty() const { return count_ == 0; }

  // Removes and returns all failures as one.
  std::optional<Status> take() {
    const std::size_t count = std::exchange(count_, 0);
    if (count == 0) return std::nullopt;
    if (count > 1) {
      first_.text += " " + std::to_string(count - 1) + " more operation" +
                     (count > 2 ? "s" : "") + " failed like this.";
    }
    return std::exchange(first_, {});
  }

 private:
  Status first_;
  std::size_t count_ = 0;
};

}  // namespace bluecomm
