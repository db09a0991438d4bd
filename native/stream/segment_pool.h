#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "stream/wire.h"

namespace bluecomm::stream {

using PayloadSegment = std::unique_ptr<std::byte[]>;

// Keeps free segments for reuse, which avoids page faults. Not thread-safe.
class SegmentPool {
 public:
  PayloadSegment take() {
    if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kSegment);
    PayloadSegment segment = std::move(free_.back());
    free_.pop_back();
    return segment;
  }

  void give(PayloadSegment segment) {
    if (segment && free_.size() < kKept) free_.push_back(std::move(segment));
  }

 private:
  static constexpr std::size_t kKept = 64;
  std::vector<PayloadSegment> free_;
};

}  // namespace bluecomm::stream
