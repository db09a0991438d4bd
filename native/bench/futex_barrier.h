#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

namespace bluecomm {

// A barrier of processes, in zeroed memory that they share. Reusable at once.
//
// A waiter spins for `spins` looks before it sleeps; with more ranks than cores that
// only keeps the others from arriving.
class FutexBarrier {
 public:
  // Returns the number of missing ranks: 0, or more once the deadline has passed, and
  // then the barrier is of no more use.
  int wait(int world_size, int spins, std::chrono::steady_clock::time_point deadline);

 private:
  alignas(64) std::atomic<std::uint32_t> arrived_;
  alignas(64) std::atomic<std::uint32_t> round_;
  std::atomic<std::uint32_t> sleepers_;
};

static_assert(std::atomic<std::uint32_t>::is_always_lock_free);

}  // namespace bluecomm
