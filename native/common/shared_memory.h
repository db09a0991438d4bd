#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>

#include "common/fd.h"

namespace bluecomm {

// A memfd that is mapped whole and can never shrink, so that whoever maps it may touch
// all of it.
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

// Memory in a segment; goes back to its allocator when destroyed, but for the copies of
// it that forked children have. Keeps the segment alive.
class SharedBlock {
 public:
  SharedBlock() = default;
  SharedBlock(SharedBlock&& other) noexcept;
  SharedBlock& operator=(SharedBlock&& other) noexcept;
  ~SharedBlock();

  // Aligned to 4 KiB; contents are undefined at first.
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  friend class SharedMemory;
  struct Owner;
  SharedBlock(std::shared_ptr<Owner> owner, std::span<std::byte> bytes);

  std::shared_ptr<Owner> owner_;
  std::span<std::byte> bytes_;
};

// Allocator of memory that peers on this machine can map. Thread-safe.
//
// Freed memory is kept and used again, because a fresh page costs more than copying it
// does. Blocks are cut from the smallest free range that fits and freed ranges join
// their neighbors, so a block wastes less than 4 KiB. Small blocks have segments of
// their own, so that a long-lived one does not take the place of a large block. Pages
// never touched cost nothing.
class SharedMemory {
 public:
  struct Options {
    // Of segments; larger blocks get one of their own size.
    std::size_t segment_bytes = std::size_t{64} << 20;
    // Segments without a block in use are unmapped beyond this.
    std::size_t keep_free_bytes = std::size_t{256} << 20;
  };

  // Where memory lies for a peer that maps the segment.
  struct Location {
    std::shared_ptr<const Segment> segment;
    std::size_t offset;
  };

  SharedMemory();
  explicit SharedMemory(const Options& options);
  ~SharedMemory();

  // Throws std::system_error when the system refuses memory, and std::logic_error in a
  // forked child, whose parent uses the same free ranges.
  SharedBlock allocate(std::size_t nbytes);

  // Nothing when `bytes` does not lie within one segment.
  std::optional<Location> find(std::span<const std::byte> bytes) const;

 private:
  std::shared_ptr<SharedBlock::Owner> owner_;
};

}  // namespace bluecomm
