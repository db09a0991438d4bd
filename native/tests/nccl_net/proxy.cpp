#include "tests/nccl_net/proxy.h"

#include <netinet/tcp.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <array>
#include <stdexcept>
#include <utility>

namespace bluecomm::test {
namespace {

constexpr int kForEver = -1;  // until stop_ is written to

const sockaddr* generic(const sockaddr_in& address) {
  return reinterpret_cast<const sockaddr*>(&address);
}

// Sends each write immediately.
void hurry(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

bool waits(const pollfd& one) { return one.revents != 0; }

}  // namespace

Proxy::Proxy(const sockaddr_in& target)
    : target_(target),
      listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)),
      stop_(eventfd(0, EFD_CLOEXEC)) {
  address_.sin_family = AF_INET;
  address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address_;
  if (bind(listener_.get(), generic(address_), length) != 0 ||
      listen(listener_.get(), 1) != 0 ||
      getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address_), &length) !=
          0) {
    throw std::runtime_error("the proxy cannot listen");
  }
  thread_ = std::thread([this] { serve(); });
}

Proxy::~Proxy() {
  const std::uint64_t one = 1;
  static_cast<void>(!write(stop_.get(), &one, sizeof one));
  thread_.join();
}

void Proxy::damage(Direction direction, std::uint64_t position, std::byte bits) {
  const std::scoped_lock lock(mutex_);
  damages_[direction] = {position, bits};
}

void Proxy::serve() {
  while (true) {
    std::array<pollfd, 2> fds{{{stop_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}}};
    poll(fds.data(), fds.size(), kForEver);
    if (waits(fds[0])) return;
    const UniqueFd client(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    const UniqueFd server(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    for (const int fd : {client.get(), server.get()}) hurry(fd);
    if (connect(server.get(), generic(target_), sizeof target_) == 0) {
      carry(client.get(), server.get());
    }
  }
}

// Forwards until one side closes, then closes the other.
void Proxy::carry(int client, int server) {
  while (true) {
    std::array<pollfd, 3> fds{
        {{stop_.get(), POLLIN, 0}, {client, POLLIN, 0}, {server, POLLIN, 0}}};
    poll(fds.data(), fds.size(), kForEver);
    if (waits(fds[0])) return;
    if (waits(fds[1]) && !move(client, server, kToTarget)) return;
    if (waits(fds[2]) && !move(server, client, kFromTarget)) return;
  }
}

bool Proxy::move(int from, int to, Direction direction) {
  std::array<std::byte, 64 << 10> buffer;
  const ssize_t n = recv(from, buffer.data(), buffer.size(), MSG_DONTWAIT);
  if (n <= 0) return false;
  auto bytes = std::span(buffer).first(static_cast<std::size_t>(n));
  apply(bytes, direction);
  while (!bytes.empty()) {
    const ssize_t sent = send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0) return false;
    bytes = bytes.subspan(static_cast<std::size_t>(sent));
  }
  return true;
}

void Proxy::apply(std::span<std::byte> bytes, Direction direction) {
  const std::scoped_lock lock(mutex_);
  auto& damage = damages_[direction];
  if (!damage) return;
  if (damage->left >= bytes.size()) {
    damage->left -= bytes.size();
    return;
  }
  bytes[damage->left] ^= damage->bits;
  damage.reset();
}

}  // namespace bluecomm::test
