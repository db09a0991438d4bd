#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "mpi/session.h"

namespace bluecomm::mpi {

// Keeps buffers of one length for reuse, so that their pages are already mapped and
// known to the network.
class BufferPool {
 public:
  explicit BufferPool(std::size_t nbytes) : nbytes_(nbytes) {}

  Buffer take() {
    if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(nbytes_);
    Buffer buffer = std::move(free_.back());
    free_.pop_back();
    return buffer;
  }

  void give(Buffer buffer) {
    if (buffer && free_.size() < kMaxFree) free_.push_back(std::move(buffer));
  }

 private:
  static constexpr std::size_t kMaxFree = 64;
  const std::size_t nbytes_;
  std::vector<Buffer> free_;
};

}  // namespace bluecomm::mpi
