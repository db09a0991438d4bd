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

// While strangers fill all places, the oldest one keeps its place at least so long.
constexpr std::chrono::milliseconds kMinStay{500};
// Pause after accept() failed for want of descriptors or memory.
constexpr std::chrono::milliseconds kPause{100};

}  // namespace

Listener::Listener(Poller& poller, const Options& options, const Hello& me)
    : poller_(poller), options_(options), me_(me) {
  std::string failures;
  for (const std::string& host : options.addresses) {
    Address address(host, 0);
    try {
      address.set_port(open_door(address));
      addresses_.push_back(address);
    } catch (const std::system_error& error) {
      failures += failures.empty() ? "" : "; ";
      failures += error.what();
    }
  }
  if (doors_.empty()) {
    throw std::runtime_error("cannot listen on any address of this rank: " +
                             (failures.empty() ? "none was given" : failures));
  }
  watch_doors(true);
}

// Returns the port under which `address` can be reached.
std::uint16_t Listener::open_door(const Address& address) {
  if (options_.listen_everywhere) {
    for (const Door& door : doors_) {
      const Address open = local_address(door.fd.get());
      if (open.family() == address.family()) return open.port();
    }
  }
  const bool everywhere = options_.listen_everywhere;
  UniqueFd fd = listen_on(everywhere ? Address::any(address.family()) : address);
  const std::uint16_t port = local_address(fd.get()).port();
  doors_.push_back({std::move(fd), {}});
  return port;
}

void Listener::watch_doors(bool on) {
  if (watching_ == on) return;
  watching_ = on;
  for (Door& door : doors_) {
    door.watch = on ? Watch(poller_, door.fd.get(), EPOLLIN) : Watch();
  }
}

bool Listener::is_stranger(const Guest& guest) { return !guest.handshake.greeted(); }

bool Listener::full() const {
  const auto strangers = std::count_if(guests_.begin(), guests_.end(), is_stranger);
  return static_cast<std::size_t>(strangers) >= options_.max_half_open;
}

void Listener::advance(Clock::time_point now, std::vector<Admitted>& admitted) {
  for (Door& door : doors_) {
    if (door.watch.take_events() == 0) continue;
    while (accept_from(door, now)) {
    }
  }
  for (auto guest = guests_.begin(); guest != guests_.end();) {
    if (guest->watch.take_events() != 0) {
      const bool useless = drive(guest->fd.get(), guest->handshake).has_value();
      if (!useless && guest->handshake.state() == Handshake::State::kDone) {
        guest->watch = {};
        admitted.push_back({guest->handshake.hello(), std::move(guest->fd)});
        guest = guests_.erase(guest);
        continue;
      }
      if (useless) guest->since = Clock::time_point::min();
    }
    if (guest->since == Clock::time_point::min() ||
        now - guest->since >= options_.handshake_timeout) {
      ++rejected_;
      guest = guests_.erase(guest);
    } else {
      ++guest;
    }
  }
  make_room(now);
  watch_doors(!full() && now >= paused_until_);
}

// False when nobody is waiting, or there is no room.
bool Listener::accept_from(Door& door, Clock::time_point now) {
  if (full()) return false;
  UniqueFd fd(accept4(door.fd.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd) {
    if (errno == EAGAIN) return false;
    if (errno == EINTR || errno == ECONNABORTED) return true;
    paused_until_ = now + kPause;
    return false;
  }
  prepare_stream(fd.get(), options_.silence_timeout);
  Watch watch(poller_, fd.get(), EPOLLIN | EPOLLOUT | EPOLLRDHUP | EPOLLET);
  guests_.push_back({std::move(fd), std::move(watch),
                     Handshake::accept(options_.key, me_, random_nonce()), now});
  return true;
}

void Listener::make_room(Clock::time_point now) {
  if (!full()) return;
  const auto oldest = std::find_if(guests_.begin(), guests_.end(), is_stranger);
  if (now - oldest->since < kMinStay) return;
  ++rejected_;
  guests_.erase(oldest);
}

Clock::time_point Listener::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  if (!watching_ && !full()) next = paused_until_;
  if (!guests_.empty()) {
    next = std::min(next, guests_.front().since + options_.handshake_timeout);
  }
  if (full()) {
    const auto oldest = std::find_if(guests_.begin(), guests_.end(), is_stranger);
    next = std::min(next, oldest->since + kMinStay);
  }
  return next;
}

void Listener::abandon() noexcept {
  for (Door& door : doors_) door.fd.reset();
  for (Guest& guest : guests_) guest.fd.reset();
}

}  // namespace bluecomm::stream
