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

bool is_bound(const Place& place) {
  return place.cpus.size() < static_cast<std::size_t>(place.online);
}

}  // namespace

// Of the process, not of the thread that asks: NCCL binds its own threads.
Place find_place(std::string_view local_rank, std::string_view local_size) {
  Place place;
  cpu_set_t set;
  if (sched_getaffinity(getpid(), sizeof set, &set) == 0) {
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (CPU_ISSET(cpu, &set)) place.cpus.push_back(cpu);
    }
  }
  place.online = static_cast<int>(sysconf(_SC_NPROCESSORS_ONLN));
  place.local_rank = number_in(local_rank, -1);
  place.local_size = number_in(local_size, 1);
  return place;
}

int auto_threads(const Place& place, int cores) {
  const int sharing = is_bound(place) || place.local_size < 1 ? 1 : place.local_size;
  return cores / sharing < kCoresPerProcess ? 0 : kAutoThreads;
}

std::vector<int> cpus_for(const Place& place, int threads, int index) {
  const std::size_t count = place.cpus.size();
  if (count == 0 || place.local_rank < 0) return place.cpus;
  const auto rank = static_cast<std::size_t>(place.local_rank);
  const std::size_t slot =
      rank * static_cast<std::size_t>(threads) + static_cast<std::size_t>(index);
  return {place.cpus[count - 1 - slot % count]};
}

}  // namespace bluecomm::nccl_net
