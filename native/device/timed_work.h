#pragma once

#include <atomic>
#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "common/status.h"
#include "device/cuda_driver.h"
#include "device/device_trace.h"
#include "device/stream_point.h"

namespace bluecomm::device {

class CudaDevice;

// The point behind copies or a call of NCCL. When it is seen to have been passed, the
// device's counters get the time since the work began: in poll(), or at the latest in
// the destructor. Thread-safe.
class WorkEnd final : public StreamPoint {
 public:
  // `begun` is the point before the work, with timing; `kind` is a literal. The context
  // of `device` is current. Throws CudaError.
  WorkEnd(std::shared_ptr<const CudaDevice> device, CudaStream stream,
          std::shared_ptr<const StreamPoint> begun, std::string_view kind,
          std::size_t nbytes);
  ~WorkEnd() override;

  std::optional<Status> poll() override;

 private:
  void count() noexcept;

  const std::shared_ptr<const CudaDevice> device_;
  const std::shared_ptr<const StreamPoint> begun_;
  const std::string_view kind_;
  const std::size_t nbytes_;
  std::atomic<bool> is_counted_ = false;
};

// Work that is handed to a stream between construction and end(), for the counters of
// the device and, if there is one, its trace. The context is current.
class TimedWork {
 public:
  // Throws CudaError.
  TimedWork(const CudaDevice& device, CudaStream stream);

  // Returns the point behind the work `name`, a literal, which has `nbytes` of input;
  // `row` is as in DeviceTrace::end(). Throws CudaError.
  std::shared_ptr<StreamPoint> end(std::string_view row, std::string_view name,
                                   std::size_t nbytes) const;

 private:
  const CudaDevice& device_;
  const CudaStream stream_;
  const std::shared_ptr<DeviceTrace> trace_;
  DeviceTrace::Begun begun_;
};

}  // namespace bluecomm::device
