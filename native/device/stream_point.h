#pragma once

#include <memory>
#include <optional>

#include "common/gate.h"
#include "common/status.h"
#include "device/cuda_driver.h"

namespace bluecomm::device {

class CudaDevice;

// A point in the order of a stream. As a gate it opens when the device has finished all
// work before the point. It keeps no memory alive. Thread-safe.
class StreamPoint final : public Gate {
 public:
  // The point behind all work that `stream` has been given. The context of `device` is
  // current. Throws CudaError.
  StreamPoint(std::shared_ptr<const CudaDevice> device, CudaStream stream);
  ~StreamPoint() override;

  // Makes the later work of `stream` wait for the point. The context is current. Throws
  // CudaError.
  void precede(CudaStream stream) const;

  // Reports the failure of any earlier work on the device.
  std::optional<Status> poll() override;

 private:
  const std::shared_ptr<const CudaDevice> device_;
  CudaEvent event_ = nullptr;
};

}  // namespace bluecomm::device
