#pragma once

#include <string_view>
#include <vector>

namespace bluecomm::nccl_net {

// The CPUs of this process, and which of the machine's processes it is.
struct CpuSet {
  std::vector<int> allowed;  // CPUs that the process may run on
  int online = 0;            // CPUs of the machine
  int local_rank = -1;       // -1 if not known
  int local_size = 1;
};

// Asks the kernel. The arguments are the values of LOCAL_RANK and LOCAL_WORLD_SIZE,
// empty if not set.
CpuSet find_cpus(std::string_view local_rank, std::string_view local_size);

// Returns the number of I/O threads for BLUECOMM_NET_THREADS=auto: two if each process
// of the machine has at least eight CPUs, else none. A process that is bound to some
// CPUs counts as their only user; otherwise all processes of the machine share its
// CPUs. `cores` is the number of CPUs that this process can keep busy.
int auto_threads(const CpuSet& cpus, int cores);

// Returns the CPUs for I/O thread `index` of `threads`: a single one, counted from the
// last, that no other local rank takes while the CPUs suffice. Returns all CPUs if the
// local rank is not known, because every rank would choose the same one.
std::vector<int> cpus_for(const CpuSet& cpus, int threads, int index);

}  // namespace bluecomm::nccl_net
