#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace bluecomm {

// A barrier for processes, in zeroed memory that they share. It can be reused
// immediately.
//
// A waiter checks `spins` times before it sleeps. Pass 0 if there are more ranks than
// cores, because a spinning waiter then keeps the others from arriving.
class FutexBarrier {
 public:
  // Waits for all ranks. Returns the number of ranks that are missing at the deadline,
  // or 0. If it is not 0, the barrier must not be used again.
  int wait(int world_size, int spins, std::chrono::steady_clock::time_point deadline);

 private:
  alignas(64) std::atomic<std::uint32_t> arrived_;
  alignas(64) std::atomic<std::uint32_t> round_;
  std::atomic<std::uint32_t> sleepers_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace bluecomm
