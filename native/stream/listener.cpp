// Accepts and authenticates connections. The owner calls advance() after its poller has
// collected events: the TCP transport on the progress thread, an Acceptor of the NCCL
// plugin under its mutex. A slot limit (Options::max_half_open) bounds the connections
// whose handshake is not done: a verified hello does not free its slot, because it may
// be a replay. While all slots are taken, the listening sockets are not watched.
#include "stream/listener.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

#include "stream/socket.h"

namespace bluecomm::stream {
namespace {

// While handshakes fill all slots, the oldest one keeps its slot at least this long.
constexpr std::chrono::milliseconds kMinStay{500};
// The pause after accept() failed for lack of descriptors or memory.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

Listener::Listener(Poller& poller, const Options& options, const Hello& me)
    : poller_(poller), options_(options), me_(me) {
  std::string failures;
  for (const std::string& host : options.addresses) {
    Address address(host, 0);
    try {
      address.set_port(open_socket(address));
      addresses_.push_back(address);
    } catch (const std::system_error& error) {
      failures += failures.empty() ? "" : "; ";
      failures += error.what();
    }
  }
  if (sockets_.empty()) {
    throw std::runtime_error("cannot listen on any address of this rank: " +
                             (failures.empty() ? "none was given" : failures));
  }
  watch_sockets(true);
}

// Opens a listening socket unless one serves `address` already; returns its port.
std::uint16_t Listener::open_socket(const Address& address) {
  if (options_.listen_everywhere) {
    for (const ListeningSocket& socket : sockets_) {
      const Address open = local_address(socket.fd.get());
      if (open.family() == address.family()) return open.port();
    }
  }
  const bool everywhere = options_.listen_everywhere;
  UniqueFd fd = listen_on(everywhere ? Address::any(address.family()) : address);
  const std::uint16_t port = local_address(fd.get()).port();
  sockets_.push_back({std::move(fd), {}});
  return port;
}

void Listener::watch_sockets(bool on) {
  if (watching_ == on) return;
  watching_ = on;
  for (ListeningSocket& socket : sockets_) {
    socket.watch = on ? Watch(poller_, socket.fd.get(), EPOLLIN) : Watch();
  }
}

void Listener::advance(Clock::time_point now,
                       std::vector<AcceptedConnection>& admitted) {
  for (ListeningSocket& socket : sockets_) {
    if (socket.watch.take_events() == 0) continue;
    while (accept_from(socket, now)) {
    }
  }
  for (auto half_open = half_open_.begin(); half_open != half_open_.end();) {
    if (half_open->watch.take_events() != 0) {
      const bool useless = drive(half_open->fd.get(), half_open->handshake).has_value();
      if (!useless && half_open->handshake.state() == Handshake::State::kDone) {
        half_open->watch = {};
        StreamSocket socket(std::move(half_open->fd),
                            half_open->handshake.make_cipher());
        admitted.push_back({half_open->handshake.hello(), std::move(socket)});
        half_open = half_open_.erase(half_open);
        continue;
      }
      if (useless) half_open->since = Clock::time_point::min();
    }
    if (half_open->since == Clock::time_point::min() ||
        now - half_open->since >= options_.handshake_timeout) {
      ++rejected_;
      half_open = half_open_.erase(half_open);
    } else {
      ++half_open;
    }
  }
  make_room(now);
  watch_sockets(!full() && now >= paused_until_);
}

// Accepts one connection. Returns false if none is waiting or all slots are taken.
bool Listener::accept_from(ListeningSocket& socket, Clock::time_point now) {
  if (full()) return false;
  UniqueFd fd(accept4(socket.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno == EAGAIN) return false;
    if (errno == EINTR || errno == ECONNABORTED) return true;
    paused_until_ = now + kPause;
    return false;
  }
  prepare_stream(fd.get(), options_.silence_timeout);
  Watch watch(poller_, fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  half_open_.push_back({std::move(fd), std::move(watch),
                        Handshake::accept(options_.key, me_, random_nonce()), now});
  return true;
}

void Listener::make_room(Clock::time_point now) {
  if (!full() || now - half_open_.front().since < kMinStay) return;
  ++rejected_;
  half_open_.pop_front();
}

Clock::time_point Listener::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  if (!watching_ && !full()) next = paused_until_;
  if (!half_open_.empty()) {
    next = std::min(next, half_open_.front().since + options_.handshake_timeout);
  }
  if (full()) next = std::min(next, half_open_.front().since + kMinStay);
  return next;
}

void Listener::abandon() noexcept {
  for (ListeningSocket& socket : sockets_) socket.fd.reset();
  for (HalfOpen& half_open : half_open_) half_open.fd.reset();
}

}  // namespace bluecomm::stream
