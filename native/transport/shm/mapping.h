#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/fd.h"

namespace bluecomm::shm {

enum class Access { kRead, kReadWrite };

// A whole memfd mapped into this process. The file can be closed afterwards.
class Mapping {
 public:
  Mapping() = default;
  // Throws ConnectionError unless `fd` is sealed against shrinking, so that touching it
  // is safe whatever the peer does, and has at least `min_nbytes`.
  Mapping(int fd, std::size_t min_nbytes, Access access);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// A part of a mapping for reading that can be written as well while this lives. Whole
// pages are: the part begins with one, and what follows it on its last one is unused.
class WritablePart {
 public:
  WritablePart(std::shared_ptr<const Mapping> mapping, std::span<const std::byte> part);
  WritablePart(const WritablePart&) = delete;
  WritablePart& operator=(const WritablePart&) = delete;
  ~WritablePart();

  // False where the system refused.
  bool is_writable() const { return is_writable_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::shared_ptr<const Mapping> mapping_;
  const std::span<std::byte> bytes_;
  const bool is_writable_;
};

// A memfd of zeros, closed on exec and sealed against shrinking. Throws
// std::system_error.
UniqueFd make_memfd(const char* name, std::size_t nbytes);

}  // namespace bluecomm::shm
