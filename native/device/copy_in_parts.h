#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/gate.h"
#include "common/mutex.h"
#include "common/status.h"
#include "device/stream_point.h"

namespace bluecomm::device {

// Returns the length of the parts in which `nbytes` are copied. The engine can work on
// the first parts while the others are copied. Each part costs an event, so the parts
// of huge tensors are longer.
std::size_t part_of(std::size_t nbytes);

// A copy to the host in parts, one after another from the first byte on. As a gate it
// opens behind the last part. It keeps no memory alive. Thread-safe.
class CopyInParts final : public Gate {
 public:
  struct Part {
    std::size_t end;  // of all bytes up to here
    std::shared_ptr<StreamPoint> point;
  };

  // `parts` are in the order of their stream, and at least one.
  explicit CopyInParts(std::vector<Part> parts) : parts_(std::move(parts)) {}

  // Reports the failure of any earlier work on the device.
  std::optional<Status> poll() override;
  std::size_t written() override;

 private:
  Mutex mutex_;
  std::vector<Part> parts_ GUARDED_BY(mutex_);
  std::size_t current_ GUARDED_BY(mutex_) =
      0;  // the first part that may not have ended
};

}  // namespace bluecomm::device
