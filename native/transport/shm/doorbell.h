#pragma once

#include <sys/eventfd.h>

#include <atomic>
#include <cstdint>

#include "common/fd.h"
#include "transport/shm/mapping.h"

namespace bluecomm::shm {

// Wakes a rank that sleeps, through an eventfd and a word in shared memory. Each peer
// has both, so a peer makes no system call while the rank is awake.
//
// The word is odd while the rank sleeps. A peer that finds it odd first writes to the
// eventfd and then makes the word even. In the opposite order, a peer that is stopped
// between the two steps would keep all others from ringing. Each sleep uses a new
// value, so a late peer cannot undo a later sleep.
struct DoorbellState {
  std::atomic<std::uint32_t> word;
};

// The doorbell of this rank.
class Doorbell {
 public:
  Doorbell();

  int event_fd() const { return event_.get(); }
  int state_fd() const { return state_file_.get(); }

  // Makes peers ring from now on. If one thread polls while another one sleeps, the
  // polling thread must call it again.
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

// The doorbell of a peer.
class PeerDoorbell {
 public:
  PeerDoorbell() = default;
  // Throws ConnectionError.
  PeerDoorbell(UniqueFd event, const UniqueFd& state_file)
      : event_(std::move(event)),
        state_(state_file.get(), sizeof(DoorbellState), Access::kReadWrite) {}

  // Wakes the peer if it sleeps. Call this after storing the data that the peer is to
  // see.
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
