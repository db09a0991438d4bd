#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

#include "common/fd.h"

namespace bluecomm::stream {

class Poller;

// Collects what the kernel reports about one descriptor until its owner asks for it.
// Nothing is called back, so owners may come and go at any time.
class Watch {
 public:
  Watch() = default;
  // `interest`: EPOLL flags. `fd` stays open as long as the watch lives.
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

// An epoll set. Outlives its watches.
class Poller {
 public:
  Poller();

  int fd() const { return fd_.get(); }
  // Collects what is there now; does not wait. True if there was anything.
  bool collect();
  // In a forked child: closes the set, which the parent goes on using.
  void abandon() noexcept { fd_.reset(); }

 private:
  friend class Watch;

  UniqueFd fd_;
  std::uint64_t next_token_ = 0;
  // By token, not by descriptor: an event may outlive the descriptor it is about.
  std::unordered_map<std::uint64_t, Watch::Slot*> slots_;
};

}  // namespace bluecomm::stream
