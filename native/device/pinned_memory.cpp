#include "device/pinned_memory.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace bluecomm::device {
namespace {

constexpr unsigned kPortable = 1;  // a constant of CUDA's interface

// Sizes are rounded up, so that calls of similar sizes reuse a block: to a power of two
// up to 1 MiB, then to a multiple of 1 MiB.
constexpr std::size_t kSmallest = 4096;
constexpr std::size_t kStep = std::size_t{1} << 20;

std::size_t rounded(std::size_t nbytes) {
  if (nbytes <= kStep) return std::bit_ceil(std::max(nbytes, kSmallest));
  return (nbytes + kStep - 1) / kStep * kStep;
}

}  // namespace

PinnedBlock::PinnedBlock(std::shared_ptr<PinnedMemory> memory,
                         std::span<std::byte> whole, std::size_t nbytes)
    : memory_(std::move(memory)), whole_(whole), nbytes_(nbytes) {}

PinnedBlock::~PinnedBlock() {
  if (!reuse()) memory_->free(whole_);
}

bool PinnedBlock::reuse() noexcept {
  if (whole_.empty()) return true;
  if (!memory_->put_back(whole_)) return false;
  whole_ = {};
  nbytes_ = 0;
  return true;
}

PinnedMemory::PinnedMemory(std::shared_ptr<const CudaDevice> device)
    : device_(std::move(device)) {}

PinnedMemory::~PinnedMemory() {
  if (device_->in_child()) return;
  const LockGuard lock(mutex_);
  for (const auto& [size, blocks] : free_) {
    for (std::byte* const block : blocks) free({block, size});
  }
}

std::unique_ptr<PinnedBlock> PinnedMemory::allocate(std::size_t nbytes) {
  const std::size_t size = rounded(nbytes);
  const ContextScope scope(*device_);  // before the lock, which a fork may have copied
  const LockGuard lock(mutex_);
  std::vector<std::byte*>& kept = free_[size];
  std::byte* memory = nullptr;
  if (kept.empty()) {
    void* allocated = nullptr;
    const CudaDriver& driver = device_->driver();
    device_->check(driver.call().host_allocate(&allocated, size, kPortable),
                   "cuMemHostAlloc");
    memory = static_cast<std::byte*>(allocated);
  } else {
    memory = kept.back();
    kept.pop_back();
    free_bytes_ -= size;
  }
  return std::make_unique<PinnedBlock>(shared_from_this(), std::span(memory, size),
                                       nbytes);
}

// Returns false if there are enough free blocks. Then the caller frees this one,
// without the lock, which other threads need to start operations.
bool PinnedMemory::put_back(std::span<std::byte> whole) noexcept {
  if (device_->in_child()) return true;  // the fork may have copied a locked mutex
  const LockGuard lock(mutex_);
  if (free_bytes_ + whole.size() > kKeepFreeBytes) return false;
  free_[whole.size()].push_back(whole.data());
  free_bytes_ += whole.size();
  return true;
}

void PinnedMemory::free(std::span<std::byte> whole) noexcept {
  try {
    const ContextScope scope(*device_);
    device_->driver().call().host_free(whole.data());
  } catch (const CudaError&) {
    // CUDA has ended before this object.
  }
}

}  // namespace bluecomm::device
