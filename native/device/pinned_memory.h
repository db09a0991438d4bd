#pragma once

#include <cstddef>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/mutex.h"
#include "device/cuda_device.h"

namespace bluecomm::device {

class PinnedMemory;

// Owns a block of page-locked memory. No copy may use it when it is reused or
// destroyed. Used by one thread at a time.
class PinnedBlock {
 public:
  PinnedBlock(std::shared_ptr<PinnedMemory> memory, std::span<std::byte> whole,
              std::size_t nbytes);
  // Reuses the block or gives it back to the system, which may wait for the device.
  ~PinnedBlock();
  PinnedBlock(const PinnedBlock&) = delete;
  PinnedBlock& operator=(const PinnedBlock&) = delete;

  // The initial contents are undefined.
  std::span<std::byte> bytes() const { return whole_.first(nbytes_); }

  // Returns the block to its allocator for later calls, without a wait; it has no bytes
  // afterwards. Returns false if the allocator has enough free blocks.
  bool reuse() noexcept;

 private:
  const std::shared_ptr<PinnedMemory> memory_;
  std::span<std::byte> whole_;
  std::size_t nbytes_;
};

// Allocates host memory that devices copy to and from without a stop of the program.
// Freed blocks are kept for later calls, because locking pages takes longer than
// copying them. Thread-safe.
class PinnedMemory : public std::enable_shared_from_this<PinnedMemory> {
 public:
  explicit PinnedMemory(std::shared_ptr<const CudaDevice> device);
  ~PinnedMemory();
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;

  // Throws CudaError.
  std::unique_ptr<PinnedBlock> allocate(std::size_t nbytes);

 private:
  friend class PinnedBlock;
  // Free blocks are given back to the system when they exceed this in total.
  static constexpr std::size_t kKeepFreeBytes = std::size_t{1} << 30;

  bool put_back(std::span<std::byte> whole) noexcept;
  void free(std::span<std::byte> whole) noexcept;

  const std::shared_ptr<const CudaDevice> device_;
  Mutex mutex_;
  std::map<std::size_t, std::vector<std::byte*>> free_ GUARDED_BY(mutex_);
  std::size_t free_bytes_ GUARDED_BY(mutex_) = 0;
};

}  // namespace bluecomm::device
