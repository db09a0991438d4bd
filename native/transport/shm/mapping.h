#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "common/fd.h"

namespace bluecomm::shm {

enum class Access { kRead, kReadWrite };

// A whole memfd, mapped into this process. The file descriptor may be closed
// afterwards.
class Mapping {
 public:
  Mapping() = default;
  // Throws ConnectionError unless `fd` has at least `min_nbytes` and is sealed against
  // shrinking, so that it is safe to touch whatever the peer does.
  Mapping(int fd, std::size_t min_nbytes, Access access);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// Makes a part of a read-only mapping writable during its own lifetime. The part
// begins at a page boundary; the rest of its last page becomes writable, too, and must
// be unused.
class WritablePart {
 public:
  WritablePart(std::shared_ptr<const Mapping> mapping, std::span<const std::byte> part);
  WritablePart(const WritablePart&) = delete;
  WritablePart& operator=(const WritablePart&) = delete;
  ~WritablePart();

  // False if the system refused to make it writable.
  bool is_writable() const { return is_writable_; }
  std::span<std::byte> bytes() const { return bytes_; }

 private:
  const std::shared_ptr<const Mapping> mapping_;
  const std::span<std::byte> bytes_;
  const bool is_writable_;
};

// Makes a memfd of zeros that is sealed against shrinking and closed on exec. Throws
// std::system_error.
UniqueFd make_memfd(const char* name, std::size_t nbytes);

}  // namespace bluecomm::shm
