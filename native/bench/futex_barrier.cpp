#include "bench/futex_barrier.h"

#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <climits>
#include <ctime>

namespace bluecomm {
namespace {

using Clock = std::chrono::steady_clock;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// Sleeps while `word` equals `value`, at most until the deadline.
void sleep_on(std::atomic<std::uint32_t>& word, std::uint32_t value,
              Clock::time_point deadline) {
  using std::chrono::nanoseconds;
  constexpr long kSecond = 1'000'000'000;
  const auto left = std::chrono::duration_cast<nanoseconds>(deadline - Clock::now());
  const long ns = std::max<long>(left.count(), 0);
  const timespec limit{ns / kSecond, ns % kSecond};
  syscall(SYS_futex, &word, FUTEX_WAIT, value, &limit, nullptr, 0);
}

}  // namespace

int FutexBarrier::wait(int world_size, int spins, Clock::time_point deadline) {
  const std::uint32_t round = round_.load();
  if (arrived_.fetch_add(1) + 1 == static_cast<std::uint32_t>(world_size)) {
    arrived_.store(0, std::memory_order_relaxed);
    round_.store(round + 1);
    // A waiter that is not yet counted as a sleeper will see that the round has
    // changed.
    if (sleepers_.load() > 0) {
      syscall(SYS_futex, &round_, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
    }
    return 0;
  }
  for (int i = 0; i < spins; ++i) {
    if (round_.load(std::memory_order_acquire) != round) return 0;
    relax();
  }
  ++sleepers_;
  while (round_.load() == round && Clock::now() < deadline) {
    sleep_on(round_, round, deadline);
  }
  --sleepers_;
  if (round_.load() != round) return 0;
  return std::max(1, world_size - static_cast<int>(arrived_.load()));
}

}  // namespace bluecomm
