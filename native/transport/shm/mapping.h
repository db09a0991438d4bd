#pragma once

#include <cstddef>
#include <span>

#include "common/fd.h"

namespace bluecomm::shm {

enum class Access { kRead, kReadWrite };

// A whole memfd mapped into this process. The file can be closed afterwards.
class Mapping {
 public:
  Mapping() = default;
  // Throws LinkError unless `fd` is sealed against shrinking, so that touching it is
  // safe whatever the peer does, and has at least `min_nbytes`.
  Mapping(int fd, std::size_t min_nbytes, Access access);
  Mapping(Mapping&& other) noexcept;
  Mapping& operator=(Mapping&& other) noexcept;
  ~Mapping();

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  std::span<std::byte> bytes_;
};

// A memfd of zeros, closed on exec and sealed against shrinking. Throws
// std::system_error.
UniqueFd make_memfd(const char* name, std::size_t nbytes);

}  // namespace bluecomm::shm
