// Unix sockets of type SOCK_SEQPACKET, which pass packets and file descriptors between
// the ranks of a machine. The connector and the connections call these functions from
// poll(); none of them blocks.
#include "transport/shm/socket.h"

#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

namespace bluecomm::shm {
namespace {

constexpr std::size_t kMaxFiles = 4;
constexpr std::size_t kMaxPath = 100;  // sockaddr_un has room for a little more

// The socket address of a path. A long path goes through /proc/self/fd and its
// directory, which stays open meanwhile.
class UnixAddress {
 public:
  explicit UnixAddress(const std::string& path) {
    address_.sun_family = AF_UNIX;
    std::string shown = path;
    if (path.size() > kMaxPath) {
      const std::filesystem::path whole(path);
      directory_.reset(
          open(whole.parent_path().c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
      if (!directory_) return;
      shown = "/proc/self/fd/" + std::to_string(directory_.get()) + "/" +
              whole.filename().string();
    }
    if (shown.size() >= sizeof address_.sun_path) {
      errno = ENAMETOOLONG;
      return;
    }
    std::copy(shown.begin(), shown.end(), address_.sun_path);
    valid_ = true;
  }

  // False, with errno set, if the path cannot be used.
  bool valid() const { return valid_; }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&address_); }

 private:
  UniqueFd directory_;
  sockaddr_un address_{};
  bool valid_ = false;
};

UniqueFd make_socket() {
  return UniqueFd(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
}

std::string random_name(int rank) {
  std::uint64_t number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) {
    throw std::system_error(errno, std::generic_category(), "getrandom");
  }
  char digits[17];
  std::snprintf(digits, sizeof digits, "%016llx",
                static_cast<unsigned long long>(number));
  return "rank-" + std::to_string(rank) + "-" + digits;
}

}  // namespace

Listener::Listener(const std::string& directory, int rank)
    : path_(directory + "/" + random_name(rank)), fd_(make_socket()) {
  const UnixAddress address(path_);
  const bool bound = fd_ && address.valid() &&
                     bind(fd_.get(), address.get(), sizeof(sockaddr_un)) == 0;
  // The connector serves only peers with the same user id; the mode rejects other users
  // earlier.
  if (bound && chmod(path_.c_str(), S_IRUSR | S_IWUSR) == 0 &&
      listen(fd_.get(), SOMAXCONN) == 0) {
    return;
  }
  const int error = errno;
  if (bound) unlink(path_.c_str());
  throw std::system_error(error, std::generic_category(),
                          "cannot listen for ranks of this machine at " + path_);
}

Listener::~Listener() {
  if (fd_) unlink(path_.c_str());
}

UniqueFd Listener::accept() {
  return UniqueFd(accept4(fd_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
}

void Listener::abandon_after_fork() noexcept { fd_.reset(); }

UniqueFd connect_to(const std::string& path) {
  UniqueFd fd = make_socket();
  if (!fd) return fd;
  const UnixAddress address(path);
  if (!address.valid()) return UniqueFd();
  if (connect(fd.get(), address.get(), sizeof(sockaddr_un)) != 0) {
    const int error = errno;
    fd.reset();
    errno = error;
  }
  return fd;
}

PeerCredentials peer_credentials(int socket) {
  ucred credentials{};
  socklen_t length = sizeof credentials;
  if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &credentials, &length) != 0) {
    return {0, static_cast<uid_t>(-1)};
  }
  return {credentials.pid, credentials.uid};
}

Packet receive_packet(int socket) {
  Packet packet;
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))];
  iovec part{packet.bytes.data(), packet.bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control;
  message.msg_controllen = sizeof control;
  const ssize_t n = recvmsg(socket, &message, MSG_CMSG_CLOEXEC | MSG_DONTWAIT);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return packet;
  packet.state = n > 0 ? Packet::State::kArrived : Packet::State::kEnded;
  if (n <= 0) return packet;
  packet.nbytes = static_cast<std::size_t>(n);
  packet.files_lost = (message.msg_flags & MSG_CTRUNC) != 0;
  for (cmsghdr* c = CMSG_FIRSTHDR(&message); c; c = CMSG_NXTHDR(&message, c)) {
    if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS) continue;
    const std::size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    for (std::size_t i = 0; i < count; ++i) {
      int fd = -1;
      std::memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
      packet.files.emplace_back(fd);
    }
  }
  return packet;
}

bool send_packet(int socket, std::span<const std::byte> bytes,
                 std::initializer_list<int> files) {
  alignas(cmsghdr) char control[CMSG_SPACE(kMaxFiles * sizeof(int))] = {};
  iovec part{const_cast<std::byte*>(bytes.data()), bytes.size()};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (files.size() > 0) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(files.size() * sizeof(int));
    cmsghdr* c = CMSG_FIRSTHDR(&message);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(files.size() * sizeof(int));
    std::memcpy(CMSG_DATA(c), files.begin(), files.size() * sizeof(int));
  }
  const ssize_t n = sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT);
  return n == static_cast<ssize_t>(bytes.size());
}

}  // namespace bluecomm::shm
