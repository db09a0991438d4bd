#pragma once

#include <cstddef>
#include <memory>

#include "device/cuda_device.h"
#include "device/cuda_driver.h"

namespace bluecomm::device {

// Memory of a device that other processes of this machine may map. They must have
// closed their mappings before it is freed. Used by one thread at a time.
class ExportedMemory {
 public:
  // Throws CudaError, also where memory cannot be shared.
  ExportedMemory(std::shared_ptr<const CudaDevice> device, std::size_t nbytes);
  ~ExportedMemory() { free(); }
  ExportedMemory(const ExportedMemory&) = delete;
  ExportedMemory& operator=(const ExportedMemory&) = delete;

  // Frees the memory, unless that was done or this process is a fork. No copy may use
  // it any more.
  void free() noexcept;

  DeviceAddress address() const { return address_; }
  const CudaIpcHandle& handle() const { return handle_; }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  DeviceAddress address_ = 0;
  CudaIpcHandle handle_{};
};

// Another process's ExportedMemory, as this device reaches it. Used by one thread at a
// time.
class MappedMemory {
 public:
  // Throws CudaError, also if the devices cannot reach each other.
  MappedMemory(std::shared_ptr<const CudaDevice> device, const CudaIpcHandle& handle);
  ~MappedMemory() { close(); }
  MappedMemory(const MappedMemory&) = delete;
  MappedMemory& operator=(const MappedMemory&) = delete;

  // Ends the mapping, unless that was done or this process is a fork. No copy may use
  // it any more.
  void close() noexcept;

  DeviceAddress address() const { return address_; }

 private:
  const std::shared_ptr<const CudaDevice> device_;
  DeviceAddress address_ = 0;
};

}  // namespace bluecomm::device
