#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "common/fd.h"

namespace bluecomm::stream {

class Poller;

// The events of one descriptor, collected until its owner takes them. There are no
// callbacks, so a watch may be created or destroyed at any time.
class Watch {
 public:
  Watch() = default;
  // `interest` are EPOLL flags. `fd` must stay open while the watch exists.
  Watch(Poller& poller, int fd, std::uint32_t interest);
  Watch(Watch&&) noexcept = default;
  Watch& operator=(Watch&& other) noexcept;
  ~Watch();

  std::uint32_t take_events();
  bool empty() const { return slot_ == nullptr; }

 private:
  friend class Poller;
  struct Slot {
    Poller* poller;
    int fd;
    std::uint64_t token;
    std::uint32_t events = 0;
  };
  std::unique_ptr<Slot> slot_;
};

// An epoll set. Must outlive its watches.
class Poller {
 public:
  Poller();

  int fd() const { return fd_.get(); }
  // Collects pending events without waiting. Returns whether there were any.
  bool collect();
  // In a forked child: closes the copy of the set, which the parent keeps using.
  void abandon() noexcept { fd_.reset(); }

 private:
  friend class Watch;

  UniqueFd fd_;
  std::uint64_t next_token_ = 0;
  // By token rather than descriptor, because an event may be reported after its
  // descriptor was closed and reused.
  std::unordered_map<std::uint64_t, Watch::Slot*> slots_;
};

}  // namespace bluecomm::stream
