// Put before the C library by LD_PRELOAD: sockets with so little room that the kernel
// reads and writes a part of what it is asked for, and calls that are interrupted.
#include <dlfcn.h>
#include <sys/socket.h>
#include <sys/uio.h>

#include <atomic>
#include <cerrno>

namespace {

constexpr int kRoom = 6000;  // the kernel takes twice as much

template <typename Function>
Function* next(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// Every third call.
bool interrupted() {
  static std::atomic<unsigned> calls = 0;
  if (++calls % 3 != 0) return false;
  errno = EINTR;
  return true;
}

}  // namespace

extern "C" int socket(int family, int type, int protocol) {
  static auto* const real = next<int(int, int, int)>("socket");
  const int fd = real(family, type, protocol);
  for (const int name : {SO_RCVBUF, SO_SNDBUF}) {
    if (fd >= 0) setsockopt(fd, SOL_SOCKET, name, &kRoom, sizeof kRoom);
  }
  return fd;
}

extern "C" ssize_t readv(int fd, const iovec* parts, int count) {
  static auto* const real = next<ssize_t(int, const iovec*, int)>("readv");
  return interrupted() ? -1 : real(fd, parts, count);
}

extern "C" ssize_t sendmsg(int fd, const msghdr* message, int flags) {
  static auto* const real = next<ssize_t(int, const msghdr*, int)>("sendmsg");
  return interrupted() ? -1 : real(fd, message, flags);
}
