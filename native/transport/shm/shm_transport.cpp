#include "transport/shm/shm_transport.h"

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
#include "transport/shm/connector.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/link.h"

namespace bluecomm {
namespace {

using namespace shm;
using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

// A rank that does not sleep looks at its sockets this often.
constexpr auto kLookEvery = 1ms;

UniqueFd make_epoll() {
  UniqueFd fd(epoll_create1(EPOLL_CLOEXEC));
  if (!fd) throw std::system_error(errno, std::generic_category(), "epoll_create1");
  return fd;
}

std::shared_ptr<Shared> checked(const ShmOptions& options) {
  if (options.eager_bytes > kMaxShmEager) {
    throw std::invalid_argument("eager_bytes of the shm transport is at most " +
                                std::to_string(kMaxShmEager) + ", got " +
                                std::to_string(options.eager_bytes));
  }
  if (!options.memory) {
    throw std::invalid_argument(
        "the shm transport needs an allocator of shared memory");
  }
  auto shared = std::make_shared<Shared>();
  shared->options = options;
  return shared;
}

class ShmTransport final : public Transport, private Connector::Owner {
 public:
  explicit ShmTransport(const ShmOptions& options)
      : shared_(checked(options)),
        epoll_(make_epoll()),
        connector_(shared_->options, doorbell_, epoll_.get()) {
    // Edge-triggered, so that nothing needs to be read from it.
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
    auto& link = links_[peer];
    if (!link) link = std::make_unique<Link>(shared_, peer, std::string(offer));
    return *link;
  }

  bool poll(Receiver& receiver) override {
    if (sleepers_ > 0) doorbell_.arm();
    receiver_ = &receiver;
    bool changed = false;
    for (const auto& [peer, link] : links_) {
      if (link->wants_wire()) connector_.dial(peer, link->offer());
    }
    if (woken_ || connector_.is_busy() || Clock::now() >= next_look_) {
      changed |= look_at_sockets();
    }
    for (const auto& [peer, link] : links_) changed |= link->poll(receiver);
    return changed;
  }

  int wait_fd() const override { return epoll_.get(); }

  bool prepare_sleep() override {
    ++sleepers_;
    doorbell_.arm();
    return std::none_of(links_.begin(), links_.end(), [this](const auto& entry) {
      const auto& [peer, link] = entry;
      return link->has_work() || (link->wants_wire() && !connector_.is_dialling(peer));
    });
  }

  void finish_sleep() override {
    woken_ = true;
    if (--sleepers_ == 0) doorbell_.disarm();
  }

  Clock::time_point next_timer() const override {
    const bool retry = std::any_of(links_.begin(), links_.end(), [](const auto& entry) {
      return entry.second->needs_retry();
    });
    const auto next = connector_.next_timer();
    return retry ? std::min(next, Clock::now() + kLookEvery) : next;
  }

  void forget(int peer) override {
    connector_.give_up(peer);
    if (const auto it = links_.find(peer); it != links_.end()) it->second->forget();
  }

  void close() override {
    closing_ = true;
    for (const auto& [peer, link] : links_) link->close();
  }

  bool closed() const override {
    return closing_ && std::all_of(links_.begin(), links_.end(), [](const auto& entry) {
             return entry.second->closed();
           });
  }

  void abandon_after_fork() noexcept override {
    epoll_.reset();
    doorbell_.close();
    connector_.abandon();
    for (const auto& [peer, link] : links_) link->abandon();
  }

 private:
  bool look_at_sockets() {
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
    next_look_ = now + kLookEvery;
    return changed;
  }

  void receive(int fd) {
    for (const auto& [peer, link] : links_) {
      if (link->socket() == fd) link->receive();
    }
  }

  bool knows(int peer) const override {
    const auto it = links_.find(peer);
    return it != links_.end() && !it->second->over();
  }

  pid_t linked_process(int peer) const override {
    const auto it = links_.find(peer);
    return it == links_.end() ? 0 : it->second->peer_pid();
  }

  void on_wire(int peer, std::unique_ptr<Wire> wire) override {
    links_.at(peer)->attach(std::move(wire));
  }

  void on_unreachable(int peer, const std::string& text) override {
    links_.at(peer)->fail(*receiver_, text);
  }

  const std::shared_ptr<Shared> shared_;
  UniqueFd epoll_;
  Doorbell doorbell_;
  Connector connector_;
  std::map<int, std::unique_ptr<Link>> links_;
  Receiver* receiver_ = nullptr;  // of the poll that is running
  int sleepers_ = 0;
  bool woken_ = false;
  bool closing_ = false;
  Clock::time_point next_look_ = Clock::time_point::min();
};

}  // namespace

std::unique_ptr<Transport> make_shm_transport(const ShmOptions& options) {
  return std::make_unique<ShmTransport>(options);
}

}  // namespace bluecomm
