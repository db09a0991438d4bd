#include "stream/poller.h"

#include <sys/epoll.h>

#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace bluecomm::stream {

Watch::Watch(Poller& poller, int fd, std::uint32_t interest)
    : slot_(std::make_unique<Slot>(Slot{&poller, fd, poller.next_token_++})) {
  epoll_event event{};
  event.events = interest;
  event.data.u64 = slot_->token;
  if (epoll_ctl(poller.fd(), EPOLL_CTL_ADD, fd, &event) != 0) {
    throw std::system_error(errno, std::generic_category(), "epoll_ctl");
  }
  poller.slots_.emplace(slot_->token, slot_.get());
}

Watch& Watch::operator=(Watch&& other) noexcept {
  Watch old(std::move(*this));
  slot_ = std::move(other.slot_);
  return *this;
}

Watch::~Watch() {
  if (!slot_) return;
  Poller& poller = *slot_->poller;
  poller.slots_.erase(slot_->token);
  if (poller.fd_) epoll_ctl(poller.fd(), EPOLL_CTL_DEL, slot_->fd, nullptr);
}

std::uint32_t Watch::take_events() {
  return slot_ ? std::exchange(slot_->events, 0) : 0;
}

Poller::Poller() : fd_(epoll_create1(EPOLL_CLOEXEC)) {
  if (!fd_) throw std::system_error(errno, std::generic_category(), "epoll_create1");
}

bool Poller::collect() {
  std::array<epoll_event, 64> events;
  const int count = epoll_wait(fd_.get(), events.data(), events.size(), 0);
  for (int i = 0; i < count; ++i) {
    const auto slot = slots_.find(events[static_cast<std::size_t>(i)].data.u64);
    if (slot == slots_.end()) continue;
    slot->second->events |= events[static_cast<std::size_t>(i)].events;
  }
  return count > 0;
}

}  // namespace bluecomm::stream
