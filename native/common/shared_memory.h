#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/fd.h"

namespace bluecomm {

// A memfd that is mapped whole. It is sealed against shrinking, so that every process
// that maps it may access all of it.
class Segment {
 public:
  // Throws std::system_error.
  Segment(std::uint64_t id, std::size_t nbytes);
  Segment(const Segment&) = delete;
  Segment& operator=(const Segment&) = delete;
  ~Segment();

  std::uint64_t id() const { return id_; }
  int fd() const { return fd_.get(); }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::uint64_t id_;
  UniqueFd fd_;
  std::span<std::byte> bytes_;
};

// Owns a block of memory in a segment, and keeps the segment alive. The destructor
// returns the block to its allocator, except in a forked child.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&& other) noexcept;
  SharedBlock& operator=(SharedBlock&& other) noexcept;
  ~SharedBlock();

  // Aligned to 4 KiB. The initial contents are undefined.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class SharedMemory;
  struct Owner;
  SharedBlock(std::shared_ptr<Owner> owner, std::span<std::byte> bytes);

  std::shared_ptr<Owner> owner_;
  std::span<std::byte> bytes_;
};

// Allocates memory that peers on this machine can map. Thread-safe.
//
// Freed memory is kept and reused, because touching a fresh page costs more than
// copying it. Blocks are cut from the smallest free range that fits, and adjacent free
// ranges are merged, so a block wastes less than 4 KiB. Small blocks have segments of
// their own, so that a long-lived small block does not split the space of a large one.
// Pages that are never touched cost nothing.
class SharedMemory {
 public:
  struct Sizes {
    // Size of a segment. A larger block gets a segment of its own size.
    std::size_t segment_bytes = std::size_t{64} << 20;
    // Unused segments are unmapped when they exceed this many bytes in total.
    std::size_t keep_free_bytes = std::size_t{256} << 20;
  };

  // Tells a peer where to find memory in a segment that it maps.
  struct Location {
    std::shared_ptr<const Segment> segment;
    std::size_t offset;
  };

  SharedMemory();
  explicit SharedMemory(const Sizes& sizes);
  ~SharedMemory();

  // Throws std::system_error if the system has no memory, and std::logic_error in a
  // forked child, because its parent uses the same free ranges.
  SharedBlock allocate(std::size_t nbytes);

  // Returns the location of `bytes`, or nothing if they do not lie within one segment.
  std::optional<Location> find(std::span<const std::byte> bytes) const;

 private:
  std::shared_ptr<SharedBlock::Owner> owner_;
};

}  // namespace bluecomm
