#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "mpi/session.h"
#include "transport/mpi/wire.h"

namespace bluecomm::mpi {

// Keeps chunks of memory for reuse: their pages are there, and known to the network.
class ChunkPool {
 public:
  Buffer take() {
    if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kChunkBytes);
    Buffer chunk = std::move(free_.back());
    free_.pop_back();
    return chunk;
  }

  void give(Buffer chunk) {
    if (chunk && free_.size() < kKept) free_.push_back(std::move(chunk));
  }

 private:
  static constexpr std::size_t kKept = 64;
  std::vector<Buffer> free_;
};

}  // namespace bluecomm::mpi
