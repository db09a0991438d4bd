// Memory of a device that processes of one machine share. Threads of the program call
// these functions when they make and free windows.
#include "device/ipc_memory.h"

#include <utility>

namespace bluecomm::device {
namespace {

constexpr unsigned kLazyEnablePeerAccess = 1;  // of CUDA's interface

// CUDA may put smaller allocations into one block, which it shares as a whole.
constexpr std::size_t kBlock = std::size_t{2} << 20;

// Calls `function`, which ends the use of memory, with the device's context.
template <typename Function>
void end_use(const CudaDevice& device, Function function) noexcept {
  if (device.in_child()) return;
  try {
    const ContextScope scope(device);
    function(device.driver().call());
  } catch (const CudaError&) {
    // CUDA has ended before this object.
  }
}

}  // namespace

ExportedMemory::ExportedMemory(std::shared_ptr<const CudaDevice> device,
                               std::size_t nbytes)
    : device_(std::move(device)) {
  const ContextScope scope(*device_);
  const CudaDriver& driver = device_->driver();
  const std::size_t whole = (nbytes + kBlock - 1) / kBlock * kBlock;
  device_->check(driver.call().allocate(&address_, whole), "cuMemAlloc");
  const int result = driver.call().ipc_export(&handle_, address_);
  if (result == 0) return;
  driver.call().free(address_);
  device_->check(result, "cuIpcGetMemHandle");
}

void ExportedMemory::free() noexcept {
  if (address_ == 0) return;
  end_use(*device_, [&](const CudaFunctions& cuda) { cuda.free(address_); });
  address_ = 0;
}

MappedMemory::MappedMemory(std::shared_ptr<const CudaDevice> device,
                           const CudaIpcHandle& handle)
    : device_(std::move(device)) {
  const ContextScope scope(*device_);
  const CudaDriver& driver = device_->driver();
  device_->check(driver.call().ipc_open(&address_, handle, kLazyEnablePeerAccess),
                 "cuIpcOpenMemHandle");
}

void MappedMemory::close() noexcept {
  if (address_ == 0) return;
  end_use(*device_, [&](const CudaFunctions& cuda) { cuda.ipc_close(address_); });
  address_ = 0;
}

}  // namespace bluecomm::device
