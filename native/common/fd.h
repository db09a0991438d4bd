#pragma once

#include <unistd.h>

#include <utility>

namespace bluecomm {

// Owns a file descriptor, or none if it is -1.
class UniqueFd {
 public:
  UniqueFd() = default;
  explicit UniqueFd(int fd) : fd_(fd) {}
  UniqueFd(UniqueFd&& other) noexcept : fd_(other.release()) {}
  UniqueFd& operator=(UniqueFd&& other) noexcept {
    if (this != &other) reset(other.release());
    return *this;
  }
  ~UniqueFd() { reset(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

  // Returns the descriptor without closing it, and owns it no longer.
  [[nodiscard]] int release() { return std::exchange(fd_, -1); }

  // Closes the descriptor and takes ownership of `fd`. Async-signal-safe.
  void reset(int fd = -1) {
    const int old = std::exchange(fd_, fd);
    if (old >= 0) ::close(old);
  }

 private:
  int fd_ = -1;
};

}  // namespace bluecomm
