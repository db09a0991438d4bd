#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>

#include "common/fd.h"
#include "transport/shm/mapping.h"

namespace bluecomm::shm {

// How a rank that sleeps is woken: an eventfd and a word in shared memory, both given
// to each peer, so that a peer makes no system call while the rank is awake.
//
// The word is odd while the rank sleeps. A peer that finds it odd writes the eventfd
// and then makes it even, in this order: were it the other way round, a peer that is
// stopped in between would keep all others from ringing. Values of different sleeps
// differ, so a late peer cannot undo a later sleep.
struct DoorbellState {
  std::atomic<std::uint32_t> word;
};

// This rank's own.
class Doorbell {
 public:
  Doorbell();

  int event_fd() const { return event_.get(); }
  int state_fd() const { return state_file_.get(); }

  // From now on peers ring. To be called again by whoever polls while others sleep.
  void arm() {
    if ((word().load() & 1) != 0) return;
    armed_ += 2;
    word().store(armed_);
  }
  void disarm() { word().store(armed_ + 1); }

  void close() noexcept {
    event_.reset();
    state_file_.reset();
  }

 private:
  std::atomic<std::uint32_t>& word() const {
    return reinterpret_cast<DoorbellState*>(state_.bytes().data())->word;
  }

  UniqueFd event_;
  UniqueFd state_file_;
  Mapping state_;
  std::uint32_t armed_ = 1;  // odd
};

// A peer's.
class PeerDoorbell {
 public:
  PeerDoorbell() = default;
  // Throws ConnectionError.
  PeerDoorbell(UniqueFd event, const UniqueFd& state_file)
      : event_(std::move(event)),
        state_(state_file.get(), sizeof(DoorbellState), Access::kReadWrite) {}

  // After what the peer shall see has been stored.
  void ring() const {
    auto& word = reinterpret_cast<DoorbellState*>(state_.bytes().data())->word;
    std::uint32_t value = word.load();
    if ((value & 1) == 0) return;
    eventfd_write(event_.get(), 1);
    word.compare_exchange_strong(value, value + 1);
  }

  void close() noexcept { event_.reset(); }

 private:
  UniqueFd event_;
  Mapping state_;
};

}  // namespace bluecomm::shm
