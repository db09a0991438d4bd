#include "stream/socket.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/random.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>
#include <string_view>
#include <system_error>

namespace bluecomm::stream {
namespace {

// The unsent bytes that a socket holds: enough to keep the network busy, and few enough
// that a chunk goes to the stream that can send it soonest.
constexpr int kUnsentLimit = 128 << 10;

constexpr int kBacklog = 1024;

// A congestion control without pacing, which every process may choose.
constexpr std::string_view kUnpaced = "reno";

// <linux/tcp.h> of Linux 6.15: the longest interval between two retransmissions.
constexpr int kTcpRtoMaxMs = 44;
constexpr std::chrono::milliseconds kRtoMax{1000};
constexpr std::chrono::hours kDay{24};
// The kernel's limits for keepalive probes: seconds between two, and their number.
constexpr int kMaxInterval = 32767;
constexpr int kMaxProbes = 127;

void set_option(int fd, int level, int name, std::int64_t wanted) {
  const int value = static_cast<int>(wanted);
  // These options improve performance only, so a failure does not matter.
  static_cast<void>(setsockopt(fd, level, name, &value, sizeof value));
}

[[noreturn]] void fail(int error, const std::string& what) {
  throw std::system_error(error, std::generic_category(), what);
}

UniqueFd open_socket(int family) {
  return UniqueFd(::socket(family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
}

// Returns whether packets to `address` stay on this machine.
bool is_local(const Address& address) {
  const UniqueFd probe(::socket(address.family(), SOCK_DGRAM | SOCK_CLOEXEC, 0));
  // Connecting a datagram socket chooses the source address and sends nothing.
  return probe && connect(probe.get(), address.data(), address.size()) == 0 &&
         stays_on_this_machine(probe.get());
}

Address address_of(int fd, decltype(getsockname)* get, const char* name) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (get(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) fail(errno, name);
  return Address(storage, length);
}

}  // namespace

UniqueFd listen_on(const Address& address) {
  UniqueFd fd = open_socket(address.family());
  if (!fd) fail(errno, "socket for " + address.text());
  if (address.family() == AF_INET6) set_option(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, 1);
  if (bind(fd.get(), address.data(), address.size()) != 0) {
    fail(errno, "bind to " + address.text());
  }
  if (listen(fd.get(), kBacklog) != 0) fail(errno, "listen on " + address.text());
  return fd;
}

Address local_address(int fd) { return address_of(fd, getsockname, "getsockname"); }

Address peer_address(int fd) { return address_of(fd, getpeername, "getpeername"); }

bool stays_on_this_machine(int fd) {
  Address here = local_address(fd);
  Address there = peer_address(fd);
  here.set_port(1);
  there.set_port(1);
  return here.text() == there.text();
}

int start_connecting(const Address& address, UniqueFd& fd) {
  fd = open_socket(address.family());
  if (!fd) return errno;
  // BBR, where it is the system's default, paces a connection at the rate that it has
  // measured. Within a machine that rate depends on when the two ends had a core. It
  // must be replaced before connect(), because a connection keeps the pacing.
  if (is_local(address)) {
    static_cast<void>(setsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, kUnpaced.data(),
                                 kUnpaced.size()));
  }
  if (connect(fd.get(), address.data(), address.size()) == 0) return 0;
  return errno == EINPROGRESS ? 0 : errno;
}

int connect_error(int fd) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length) != 0) return errno;
  return error;
}

void prepare_stream(int fd, std::chrono::milliseconds silence_timeout) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  // By default, the pause before a retransmission is as long as everything before it,
  // and a healed network may stay unused for that long.
  set_option(fd, IPPROTO_TCP, kTcpRtoMaxMs, kRtoMax.count());
  // Shorter pauses would use up the kernel's retries: is_silent() alone says when a
  // peer is lost. The timeout must not be short, because the kernel also applies it to
  // a peer whose process is stopped.
  set_option(fd, IPPROTO_TCP, TCP_USER_TIMEOUT,
             std::chrono::milliseconds(kDay).count());
  // Probes an idle peer's kernel eight times within the timeout, and ends nothing.
  const auto eighth =
      std::chrono::duration_cast<std::chrono::seconds>(silence_timeout / 8);
  const auto interval_s = std::clamp<std::int64_t>(eighth.count(), 1, kMaxInterval);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, interval_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, interval_s);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, kMaxProbes);
}

void limit_unsent(int fd, bool on) {
  // 0 restores the system's default, which is no limit.
  set_option(fd, IPPROTO_TCP, TCP_NOTSENT_LOWAT, on ? kUnsentLimit : 0);
}

std::string peer_text(int fd) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&storage), &length) != 0) {
    return "an unknown address";
  }
  return Address(storage, length).text();
}

std::string error_text(int error) { return std::generic_category().message(error); }

bool is_silent(int fd, std::chrono::milliseconds timeout) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  // While the peer's receive window is closed, probes may be minutes apart, and a
  // single unanswered one does not count.
  const bool asked = info.tcpi_retransmits > 0 || info.tcpi_probes > 1;
  return asked && std::chrono::milliseconds(info.tcpi_last_ack_recv) >= timeout;
}

Repeats repeats_of(int fd) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return {};
  const std::chrono::microseconds after{info.tcpi_rto};
  return {info.tcpi_total_retrans,
          std::chrono::duration_cast<std::chrono::milliseconds>(after)};
}

std::optional<std::string> drive(int fd, Handshake& handshake) {
  while (!handshake.space().empty()) {
    const auto space = handshake.space();
    const ssize_t n = recv(fd, space.data(), space.size(), 0);
    if (n == 0) return "closed the connection during the handshake (another job?)";
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno != EINTR) return error_text(errno);
    if (n > 0) handshake.received(static_cast<std::size_t>(n));
  }
  while (!handshake.output().empty()) {
    const auto output = handshake.output();
    const ssize_t n = send(fd, output.data(), output.size(), MSG_NOSIGNAL);
    if (n < 0 && errno == EAGAIN) break;
    if (n < 0 && errno != EINTR) return error_text(errno);
    if (n > 0) handshake.sent(static_cast<std::size_t>(n));
  }
  if (handshake.state() == Handshake::State::kFailed) {
    return "does not know the key of this job";
  }
  return std::nullopt;
}

Nonce random_nonce() {
  Nonce nonce;
  // getrandom() returns up to 256 bytes completely.
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    fail(errno, "getrandom");
  }
  return nonce;
}

}  // namespace bluecomm::stream
