#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include "common/gate.h"
#include "common/status.h"
#include "device/cuda_driver.h"

namespace bluecomm::device {

class CudaDevice;

// A point in the order of a stream. As a gate it opens when the device has finished all
// work before the point. It keeps no memory alive. Thread-safe.
class StreamPoint : public Gate {
 public:
  // Whether the device notes the time at which it passes a point, which costs more.
  enum class Timing : std::uint8_t { kOff, kOn };

  // The point behind all work that `stream` has been given. The context of `device` is
  // current. Throws CudaError.
  StreamPoint(std::shared_ptr<const CudaDevice> device, CudaStream stream,
              Timing timing = Timing::kOff);
  ~StreamPoint() override;

  // Makes the later work of `stream` wait for the point. The context is current. Throws
  // CudaError.
  void precede(CudaStream stream) const;

  // Returns the device's time from this point to another one, both with timing, in
  // nanoseconds; nothing before the device has passed both. Throws CudaError.
  std::optional<std::int64_t> ns_until(const StreamPoint& other) const;

  // Reports the failure of any earlier work on the device.
  std::optional<Status> poll() override;

 private:
  const std::shared_ptr<const CudaDevice> device_;
  CudaEvent event_ = nullptr;
};

}  // namespace bluecomm::device
