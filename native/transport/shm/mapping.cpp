#include "transport/shm/mapping.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <system_error>
#include <utility>

#include "transport/shm/ring.h"

namespace bluecomm::shm {

Mapping::Mapping(int fd, std::size_t min_nbytes, Access access) {
  const int seals = fcntl(fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    throw ConnectionError("it sent a file descriptor that is not sealed shared memory");
  }
  struct stat status{};
  if (fstat(fd, &status) != 0 || status.st_size <= 0 ||
      static_cast<std::size_t>(status.st_size) < min_nbytes) {
    throw ConnectionError("it sent shared memory of " + std::to_string(status.st_size) +
                          " bytes, expected at least " + std::to_string(min_nbytes));
  }
  const auto nbytes = static_cast<std::size_t>(status.st_size);
  const int protection = access == Access::kRead ? PROT_READ : PROT_READ | PROT_WRITE;
  void* address = mmap(nullptr, nbytes, protection, MAP_SHARED, fd, 0);
  if (address == MAP_FAILED) {
    throw ConnectionError("cannot map its shared memory of " + std::to_string(nbytes) +
                          " bytes: " + std::strerror(errno));
  }
  bytes_ = {static_cast<std::byte*>(address), nbytes};
}

Mapping::Mapping(Mapping&& other) noexcept : bytes_(std::exchange(other.bytes_, {})) {}

Mapping& Mapping::operator=(Mapping&& other) noexcept {
  std::swap(bytes_, other.bytes_);
  return *this;
}

Mapping::~Mapping() {
  if (!bytes_.empty()) munmap(bytes_.data(), bytes_.size());
}

WritablePart::WritablePart(std::shared_ptr<const Mapping> mapping,
                           std::span<const std::byte> part)
    : mapping_(std::move(mapping)),
      bytes_(const_cast<std::byte*>(part.data()), part.size()),
      is_writable_(mprotect(bytes_.data(), bytes_.size(), PROT_READ | PROT_WRITE) ==
                   0) {}

WritablePart::~WritablePart() {
  if (is_writable_) mprotect(bytes_.data(), bytes_.size(), PROT_READ);
}

UniqueFd make_memfd(const char* name, std::size_t nbytes) {
  UniqueFd fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (!fd || ftruncate(fd.get(), static_cast<off_t>(nbytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, seals) != 0) {
    throw std::system_error(errno, std::generic_category(),
                            "cannot create shared memory");
  }
  return fd;
}

}  // namespace bluecomm::shm
