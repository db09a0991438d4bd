#include "nccl_net/cpus.h"

#include <sched.h>
#include <unistd.h>

#include <charconv>
#include <cstddef>

namespace bluecomm::nccl_net {
namespace {

constexpr int kCoresPerProcess = 8;
constexpr int kAutoThreads = 2;

int number_in(std::string_view text, int otherwise) {
  int number = otherwise;
  std::from_chars(text.data(), text.data() + text.size(), number);
  return number;
}

bool is_bound(const CpuSet& cpus) {
  return cpus.allowed.size() < static_cast<std::size_t>(cpus.online);
}

}  // namespace

// Asks for the process's CPUs rather than the calling thread's: NCCL binds its own
// threads.
CpuSet find_cpus(std::string_view local_rank, std::string_view local_size) {
  CpuSet cpus;
  cpu_set_t set;
  if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) cpus.allowed.push_back(cpu);
    }
  }
  cpus.online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  cpus.local_rank = number_in(local_rank, -1);
  cpus.local_size = number_in(local_size, 1);
  return cpus;
}

int auto_threads(const CpuSet& cpus, int cores) {
  const int sharing = is_bound(cpus) || cpus.local_size < 1 ? 1 : cpus.local_size;
  return cores / sharing < kCoresPerProcess ? 0 : kAutoThreads;
}

std::vector<int> cpus_for(const CpuSet& cpus, int threads, int index) {
  const std::size_t count = cpus.allowed.size();
  if (count == 0 || cpus.local_rank < 0) return cpus.allowed;
  const auto rank = static_cast<std::size_t>(cpus.local_rank);
  const std::size_t slot =
      rank * static_cast<std::size_t>(threads) + static_cast<std::size_t>(index);
  return {cpus.allowed[count - 1 - slot % count]};
}

}  // namespace bluecomm::nccl_net
