// The shm transport: owns the channels, the connector, this rank's doorbell, and the
// epoll descriptor on which a leader sleeps. poll() checks the sockets only once a
// millisecond or after a sleep; messages are found in the rings, without a system call.
#include "transport/shm/transport.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <map>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "transport/shm/channel.h"
#include "transport/shm/connector.h"
#include "transport/shm/doorbell.h"

namespace bluecomm {
namespace {

using namespace shm;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A rank that does not sleep checks its sockets this often.
constexpr auto kSocketInterval = 1ms;

UniqueFd make_epoll() {
  UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  if (!fd) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  return fd;
}

std::shared_ptr<SharedState> checked(const ShmOptions& options) {
  if (options.eager_bytes > kMaxShmEager) {
    throw std::invalid_argument("shm: expected eager_bytes of at most " +
                                std::to_string(kMaxShmEager) + ", got " +
                                std::to_string(options.eager_bytes));
  }
  if (!options.memory) {
    throw std::invalid_argument(
        "shm: expected an allocator of shared memory, got none");
  }
  auto shared = std::make_shared<SharedState>();
  shared->options = options;
  return shared;
}

class ShmTransport final : public Transport, private Connector::Owner {
 public:
  explicit ShmTransport(const ShmOptions& options)
      : shared_(checked(options)),
        epoll_(make_epoll()),
        connector_(shared_->options, doorbell_, epoll_.get()) {
    // Edge-triggered, so that the eventfd need not be read.
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.fd = doorbell_.event_fd();
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, doorbell_.event_fd(), &event) != 0) {
      throw std::system_error(errno, std::generic_category(), "epoll_ctl");
    }
  }

  std::string_view name() const override { return "shm"; }
  std::string offer() const override { return connector_.path(); }

  bool reaches(const Peer& peer) const override {
    return peer.machine == shared_->options.machine && Transport::reaches(peer);
  }

  Channel& channel(int peer, std::string_view offer) override {
    auto& channel = channels_[peer];
    if (!channel)
      channel = std::make_unique<RingChannel>(shared_, peer, std::string(offer));
    return *channel;
  }

  bool poll(Receiver& receiver) override {
    if (sleepers_ > 0) doorbell_.arm();
    receiver_ = &receiver;
    bool changed = false;
    for (const auto& [peer, channel] : channels_) {
      if (channel->wants_connection()) connector_.dial(peer, channel->offer());
    }
    if (woken_ || connector_.is_busy() || Clock::now() >= next_socket_poll_) {
      changed |= poll_sockets();
    }
    for (const auto& [peer, channel] : channels_) changed |= channel->poll(receiver);
    return changed;
  }

  int wait_fd() const override { return epoll_.get(); }

  bool prepare_sleep() override {
    ++sleepers_;
    doorbell_.arm();
    return std::none_of(channels_.begin(), channels_.end(), [this](const auto& entry) {
      const auto& [peer, channel] = entry;
      return channel->busy() ||
             (channel->wants_connection() && !connector_.is_dialling(peer));
    });
  }

  void finish_sleep() override {
    woken_ = true;
    if (--sleepers_ == 0) doorbell_.disarm();
  }

  Clock::time_point next_timer() const override {
    const bool retry =
        std::any_of(channels_.begin(), channels_.end(),
                    [](const auto& entry) { return entry.second->needs_retry(); });
    const auto next = connector_.next_timer();
    return retry ? std::min(next, Clock::now() + kSocketInterval) : next;
  }

  void forget(int peer) override {
    connector_.give_up(peer);
    if (const auto it = channels_.find(peer); it != channels_.end())
      it->second->forget();
  }

  void close() override {
    closing_ = true;
    for (const auto& [peer, channel] : channels_) channel->close();
  }

  bool closed() const override {
    return closing_ &&
           std::all_of(channels_.begin(), channels_.end(),
                       [](const auto& entry) { return entry.second->closed(); });
  }

  void abandon_after_fork() noexcept override {
    epoll_.reset();
    doorbell_.close();
    connector_.abandon_after_fork();
    for (const auto& [peer, channel] : channels_) channel->abandon_after_fork();
  }

 private:
  bool poll_sockets() {
    woken_ = false;
    std::array<epoll_event, 32> events;
    const int count =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
    bool changed = false;
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<std::size_t>(i)].data.fd;
      if (fd == doorbell_.event_fd()) continue;
      changed = true;
      if (connector_.owns(fd)) {
        connector_.on_readable(fd, *this);
      } else {
        receive(fd);
      }
    }
    const Clock::time_point now = Clock::now();
    connector_.on_time(now, *this);
    next_socket_poll_ = now + kSocketInterval;
    return changed;
  }

  void receive(int fd) {
    for (const auto& [peer, channel] : channels_) {
      if (channel->socket() == fd) channel->receive();
    }
  }

  bool knows(int peer) const override {
    const auto it = channels_.find(peer);
    return it != channels_.end() && !it->second->finished();
  }

  pid_t connected_process(int peer) const override {
    const auto it = channels_.find(peer);
    return it == channels_.end() ? 0 : it->second->peer_pid();
  }

  void on_connected(int peer, std::unique_ptr<RingConnection> connection) override {
    channels_.at(peer)->attach(std::move(connection));
  }

  void on_unreachable(int peer, const std::string& text) override {
    channels_.at(peer)->lose(*receiver_, text);
  }

  const std::shared_ptr<SharedState> shared_;
  UniqueFd epoll_;
  Doorbell doorbell_;
  Connector connector_;
  std::map<int, std::unique_ptr<RingChannel>> channels_;
  Receiver* receiver_ = nullptr;  // of the running poll()
  int sleepers_ = 0;
  bool woken_ = false;
  bool closing_ = false;
  Clock::time_point next_socket_poll_ = Clock::time_point::min();
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace bluecomm
