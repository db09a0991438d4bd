#pragma once

#include <memory>

#include "device/cuda_device.h"
#include "device/pinned_memory.h"

namespace bluecomm::bindings {

// A device and the host memory that is copied from and to it.
struct PyCudaDevice {
  std::shared_ptr<device::CudaDevice> device;
  std::shared_ptr<device::PinnedMemory> memory;
};

}  // namespace bluecomm::bindings
