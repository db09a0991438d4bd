#pragma once

#include <cstddef>
#include <memory>
#include <vector>

namespace bluecomm {

// An allocator that leaves new bytes as they are, so that resize() writes nothing.
struct LeavesBytes : std::allocator<std::byte> {
  template <typename>
  struct rebind {
    using other = LeavesBytes;
  };
  void construct(std::byte*) {}
  void construct(std::byte* at, std::byte value) { *at = value; }
};

// A vector whose resize() leaves the new bytes uninitialized.
using UninitializedBytes = std::vector<std::byte, LeavesBytes>;

}  // namespace bluecomm
