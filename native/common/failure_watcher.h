#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/status.h"

namespace bluecomm {

// Learns from the engine of failures that may concern calls which have ended here, but
// which the library of a device still carries out, and tells it of those of the device.
class FailureWatcher {
 public:
  FailureWatcher() = default;
  FailureWatcher(const FailureWatcher&) = delete;
  FailureWatcher& operator=(const FailureWatcher&) = delete;
  virtual ~FailureWatcher() = default;

  // The engine calls these functions under the progress lock. They neither block nor
  // call the engine.

  // Called once for each lost rank.
  virtual void note_lost(int rank, const std::string& reason) = 0;
  // A call of a group, with a ticket, has failed on another rank, after it had ended
  // here, or after this rank has removed the group.
  virtual void note_failed_ticket(std::uint64_t group, const Status& status) = 0;
  // A member has removed a group. The library may report that as an error.
  virtual void note_removed_group(std::uint64_t group, const Status& status) = 0;
  // The device of another rank has failed, so none of its calls succeeds any more.
  virtual void note_failed_device(int rank, const std::string& reason) = 0;
  // Returns how the device of this rank has failed, which the other ranks must learn.
  virtual std::optional<Status> device_failure() const = 0;
  // Returns whether the device works, so that it may fail.
  virtual bool is_working() const = 0;
};

}  // namespace bluecomm
