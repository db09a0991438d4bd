#include "nccl_net/cpus.h"

#include "tests/check.h"

namespace bluecomm::nccl_net {
namespace {

CpuSet cpu_set(int count, int online, int local_rank, int local_size) {
  CpuSet cpus{{}, online, local_rank, local_size};
  for (int cpu = 0; cpu < count; ++cpu) cpus.allowed.push_back(100 + cpu);
  return cpus;
}

TEST(nccl_net_cpus, auto_uses_threads_if_each_process_has_eight_cpus) {
  CHECK_EQ(auto_threads(cpu_set(7, 7, -1, 1), 7), 0);
  CHECK_EQ(auto_threads(cpu_set(8, 8, -1, 1), 8), 2);
  // Unbound processes share all CPUs of the machine.
  CHECK_EQ(auto_threads(cpu_set(63, 63, 0, 8), 63), 0);
  CHECK_EQ(auto_threads(cpu_set(64, 64, 0, 8), 64), 2);
  // Each process is bound to its own CPUs.
  CHECK_EQ(auto_threads(cpu_set(8, 64, 0, 8), 8), 2);
  // The control group limits the process further.
  CHECK_EQ(auto_threads(cpu_set(64, 64, -1, 1), 4), 0);
}

TEST(nccl_net_cpus, each_thread_of_each_local_rank_has_its_own_cpu) {
  using Cpus = std::vector<int>;
  CHECK(cpus_for(cpu_set(8, 8, 0, 2), 2, 0) == Cpus{107});
  CHECK(cpus_for(cpu_set(8, 8, 0, 2), 2, 1) == Cpus{106});
  CHECK(cpus_for(cpu_set(8, 8, 1, 2), 2, 0) == Cpus{105});
  CHECK(cpus_for(cpu_set(8, 8, 4, 8), 2, 0) ==
        Cpus{107});  // wraps around to the last CPU
  const CpuSet unknown = cpu_set(8, 8, -1, 1);
  CHECK(cpus_for(unknown, 2, 1) == unknown.allowed);
  CHECK(cpus_for(cpu_set(0, 8, 0, 1), 2, 0).empty());
}

}  // namespace
}  // namespace bluecomm::nccl_net
