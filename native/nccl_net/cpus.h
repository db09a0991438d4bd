#pragma once

#include <string_view>
#include <vector>

namespace bluecomm::nccl_net {

// Where this process is among those of its machine, as far as it is known.
struct CpuSet {
  std::vector<int> allowed;  // that the process may run on
  int online = 0;            // CPUs of the machine
  int local_rank = -1;       // -1: not known
  int local_size = 1;
};

// The two are LOCAL_RANK and LOCAL_WORLD_SIZE, empty where they are not set.
CpuSet find_cpus(std::string_view local_rank, std::string_view local_size);

// BLUECOMM_NET_THREADS=auto: two where each process of the machine can keep eight CPUs
// busy, else none. A process that was bound to a part of the machine has that part for
// itself; otherwise all of its machine's processes share all. `cores`: the CPUs that
// this process can keep busy.
int auto_threads(const CpuSet& cpus, int cores);

// CPUs for thread `index` of `threads`: one, counted from the last, and others for
// other local ranks. All if the local rank is not known: others would take the same
// ones.
std::vector<int> cpus_for(const CpuSet& cpus, int threads, int index);

}  // namespace bluecomm::nccl_net
