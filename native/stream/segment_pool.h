#pragma once

#include <cstddef>
#include <memory>
#include <utility>
#include <vector>

#include "stream/wire.h"

namespace bluecomm::stream {

using Segment = std::unique_ptr<std::byte[]>;

// Keeps free segments for reuse, which avoids page faults. Not thread-safe.
class SegmentPool {
 public:
  Segment take() {
    if (free_.empty()) return std::make_unique_for_overwrite<std::byte[]>(kSegment);
    Segment segment = std::move(free_.back());
    free_.pop_back();
    return segment;
  }

  void give(Segment segment) {
    if (segment && free_.size() < kKept) free_.push_back(std::move(segment));
  }

 private:
  static constexpr std::size_t kKept = 64;
  std::vector<Segment> free_;
};

}  // namespace bluecomm::stream
