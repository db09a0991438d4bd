// Establishes connections between the ranks of a machine. The shm transport calls it
// from poll(), under the progress lock: on_readable() when one of its sockets is
// readable, on_time() about once a millisecond. Each connection goes through the
// handshake of handshake.h; whatever fails it is closed without an answer.
#include "transport/shm/connector.h"

#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <optional>
#include <system_error>
#include <utility>

#include "common/bytes.h"

namespace bluecomm::shm {
namespace {

using namespace std::chrono_literals;

// At most this many accepted connections wait for their handshake; the oldest is
// dropped.
constexpr std::size_t kMaxHalfOpen = 64;
constexpr auto kRetryBusy = 5ms;
constexpr auto kRetryCrossed = 200ms;

template <typename T>
std::optional<T> parse(const Packet& packet) {
  T value;
  if (packet.nbytes != sizeof value) return std::nullopt;
  std::memcpy(&value, packet.bytes.data(), sizeof value);
  if (value.magic != kMagic) return std::nullopt;
  return value;
}

std::shared_ptr<Mapping> map_rings(const UniqueFd& file) {
  return std::make_shared<Mapping>(file.get(), sizeof(RingPair), Access::kReadWrite);
}

}  // namespace

Connector::Connector(const ShmOptions& options, const Doorbell& doorbell, int epoll)
    : options_(options),
      doorbell_(doorbell),
      epoll_(epoll),
      job_(sha256(std::as_bytes(std::span(options.job)))),
      listener_(options.socket_dir, options.rank) {
  watch(listener_.fd());
}

void Connector::watch(int fd) {
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.fd = fd;
  if (epoll_ctl(epoll_, EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
}

void Connector::dial(int peer, const std::string& path) {
  dials_.try_emplace(peer).first->second.path = path;
}

bool Connector::owns(int fd) const {
  return fd == listener_.fd() ||
         std::any_of(half_open_.begin(), half_open_.end(),
                     [fd](const HalfOpen& c) { return c.socket.get() == fd; }) ||
         std::any_of(dials_.begin(), dials_.end(),
                     [fd](const auto& d) { return d.second.socket.get() == fd; });
}

void Connector::on_readable(int fd, Owner& owner) {
  if (fd == listener_.fd()) {
    accept_all();
    return;
  }
  for (auto it = half_open_.begin(); it != half_open_.end(); ++it) {
    if (it->socket.get() != fd) continue;
    if (serve(*it, owner) == Fate::kDone) half_open_.erase(it);
    return;
  }
  for (auto& [peer, dial] : dials_) {
    if (dial.socket.get() != fd) continue;
    const int dialled = peer;
    if (serve(dialled, dial, owner) == Fate::kDone) dials_.erase(dialled);
    return;
  }
}

void Connector::on_time(Clock::time_point now, Owner& owner) {
  std::erase_if(half_open_, [now](const HalfOpen& c) { return c.deadline <= now; });
  for (auto it = dials_.begin(); it != dials_.end();) {
    auto& [peer, dial] = *it++;
    if (!dial.socket && dial.retry_at <= now) connect(peer, dial, owner);
  }
}

Connector::Clock::time_point Connector::next_timer() const {
  auto next = Clock::time_point::max();
  for (const HalfOpen& connection : half_open_) {
    next = std::min(next, connection.deadline);
  }
  for (const auto& [peer, dial] : dials_) {
    if (!dial.socket) next = std::min(next, dial.retry_at);
  }
  return next;
}

void Connector::abandon_after_fork() noexcept {
  listener_.abandon_after_fork();
  half_open_.clear();
  dials_.clear();
}

void Connector::accept_all() {
  while (UniqueFd socket = listener_.accept()) {
    if (peer_credentials(socket.get()).uid != geteuid()) continue;
    if (half_open_.size() >= kMaxHalfOpen) half_open_.pop_front();
    HalfOpen connection{
        std::move(socket), {}, Clock::now() + options_.handshake_timeout};
    connection.challenge.nonce = make_nonce();
    if (!send_packet(connection.socket.get(), value_bytes(connection.challenge)))
      continue;
    watch(connection.socket.get());
    half_open_.push_back(std::move(connection));
  }
}

// --- Connections that peers have dialed ---------------------------------------------
Connector::Fate Connector::serve(HalfOpen& connection, Owner& owner) {
  Packet packet = receive_packet(connection.socket.get());
  if (packet.state == Packet::State::kNothing) return Fate::kWaiting;
  if (packet.state == Packet::State::kEnded) return Fate::kDone;
  const auto hello = parse<Hello>(packet);
  if (!hello || packet.files.size() != 3) return Fate::kDone;
  const Digest mac = hello_mac(options_.secret, connection.challenge, *hello);
  const bool is_ours = equal_in_constant_time(mac, hello->mac) && hello->job == job_ &&
                       hello->epoch == options_.epoch && hello->to == options_.rank &&
                       hello->from != options_.rank && owner.knows(hello->from);
  if (!is_ours || refuse(connection, *hello, owner)) return Fate::kDone;
  return admit(connection, *hello, packet, owner);
}

// Refuses the connection if it must not be established. Returns true in that case.
bool Connector::refuse(HalfOpen& connection, const Hello& hello, Owner& owner) {
  Answer answer;
  if (const pid_t pid = owner.connected_process(hello.from); pid != 0) {
    answer.kind = AnswerKind::kAlreadyConnected;
    answer.pid = pid;
  } else if (options_.rank < hello.from && dials_.contains(hello.from)) {
    answer.kind = AnswerKind::kCrossed;
  } else {
    return false;
  }
  answer.mac = answer_mac(options_.secret, connection.challenge, hello, answer);
  send_packet(connection.socket.get(), value_bytes(answer));
  return true;
}

Connector::Fate Connector::admit(HalfOpen& connection, const Hello& hello,
                                 Packet& packet, Owner& owner) {
  Answer answer;
  answer.mac = answer_mac(options_.secret, connection.challenge, hello, answer);
  try {
    RingConnection::Endpoints endpoints{
        .socket = {},
        .memory = map_rings(packet.files[0]),
        .doorbell = PeerDoorbell(std::move(packet.files[1]), packet.files[2]),
        .dialled = false};
    if (!send_packet(connection.socket.get(), value_bytes(answer),
                     {doorbell_.event_fd(), doorbell_.state_fd()})) {
      return Fate::kDone;
    }
    endpoints.socket = std::move(connection.socket);
    dials_.erase(hello.from);
    owner.on_connected(hello.from,
                       std::make_unique<RingConnection>(std::move(endpoints)));
  } catch (const ConnectionError&) {
    // The dialer tries again or gives up.
  }
  return Fate::kDone;
}

// --- Connections that this rank has dialed -----------------------------------------
void Connector::connect(int peer, Dial& dial, Owner& owner) {
  dial.socket = connect_to(dial.path);
  if (!dial.socket) {
    if (errno == EAGAIN || errno == EINTR) {
      dial.retry_at = Clock::now() + kRetryBusy;
      return;
    }
    const std::string text = "cannot connect to " + dial.path + ": " +
                             std::strerror(errno) + "; has its process ended?";
    dials_.erase(peer);
    owner.on_unreachable(peer, text);
    return;
  }
  watch(dial.socket.get());
}

Connector::Fate Connector::serve(int peer, Dial& dial, Owner& owner) {
  Packet packet = receive_packet(dial.socket.get());
  if (packet.state == Packet::State::kNothing) return Fate::kWaiting;
  const bool arrived = packet.state == Packet::State::kArrived;
  if (arrived && !dial.memory_file && greet(peer, dial, packet) == Fate::kWaiting) {
    return Fate::kWaiting;
  }
  if (arrived && dial.memory_file) return conclude(peer, dial, packet, owner);
  return retry(peer, dial, owner);
}

// Answers the challenge. Returns kDone if that is not possible.
Connector::Fate Connector::greet(int peer, Dial& dial, const Packet& packet) {
  const auto challenge = parse<Challenge>(packet);
  if (!challenge || peer_credentials(dial.socket.get()).uid != geteuid())
    return Fate::kDone;
  dial.challenge = *challenge;
  dial.hello = {.from = options_.rank,
                .to = peer,
                .epoch = options_.epoch,
                .job = job_,
                .nonce = make_nonce()};
  dial.hello.mac = hello_mac(options_.secret, dial.challenge, dial.hello);
  UniqueFd memory = make_memfd("bluecomm-rings", sizeof(RingPair));
  if (!send_packet(dial.socket.get(), value_bytes(dial.hello),
                   {memory.get(), doorbell_.event_fd(), doorbell_.state_fd()})) {
    return Fate::kDone;
  }
  dial.memory_file = std::move(memory);
  return Fate::kWaiting;
}

Connector::Fate Connector::conclude(int peer, Dial& dial, Packet& packet,
                                    Owner& owner) {
  const auto answer = parse<Answer>(packet);
  if (!answer || !equal_in_constant_time(
                     answer_mac(options_.secret, dial.challenge, dial.hello, *answer),
                     answer->mac)) {
    return retry(peer, dial, owner);
  }
  switch (answer->kind) {
    case AnswerKind::kCrossed:
      dial.socket.reset();
      dial.memory_file.reset();
      dial.retry_at = Clock::now() + kRetryCrossed;
      return Fate::kWaiting;
    case AnswerKind::kAlreadyConnected:
      owner.on_unreachable(
          peer, "it is already connected to process " + std::to_string(answer->pid) +
                    " as rank " + std::to_string(options_.rank) +
                    ", and this is process " + std::to_string(getpid()) +
                    "; does the program start processes of its own without "
                    "`if __name__ == \"__main__\":`?");
      return Fate::kDone;
    case AnswerKind::kAccepted:
      break;
  }
  if (packet.files.size() != 2) return retry(peer, dial, owner);
  try {
    RingConnection::Endpoints endpoints{
        .socket = {},
        .memory = map_rings(dial.memory_file),
        .doorbell = PeerDoorbell(std::move(packet.files[0]), packet.files[1]),
        .dialled = true};
    endpoints.socket = std::move(dial.socket);
    owner.on_connected(peer, std::make_unique<RingConnection>(std::move(endpoints)));
  } catch (const ConnectionError& error) {
    owner.on_unreachable(peer, error.what());
  }
  return Fate::kDone;
}

// Dials again later: the peer has dropped the connection, because it was slow or
// because it does not want this rank.
Connector::Fate Connector::retry(int peer, Dial& dial, Owner& owner) {
  const Clock::time_point now = Clock::now();
  dial.socket.reset();
  dial.memory_file.reset();
  dial.retry_at = now + kRetryBusy;
  dial.refused_since = std::min(dial.refused_since, now);
  if (now < dial.refused_since + options_.refused_timeout) return Fate::kWaiting;
  owner.on_unreachable(peer, "it refuses this rank's connections at " + dial.path +
                                 "; does it belong to another job or epoch, or "
                                 "use another key?");
  return Fate::kDone;
}

}  // namespace bluecomm::shm
