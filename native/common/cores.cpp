#include "common/cores.h"

#include <sched.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string_view>
#include <vector>

namespace bluecomm {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

int whole_cores(double quota, double period) {
  if (quota <= 0 || period <= 0) return kNoLimit;
  const double cores = quota / period;
  return cores >= kNoLimit ? kNoLimit : static_cast<int>(cores);
}

// Reads a quota of version 2: "max 100000" or "150000 100000".
int limit_v2(const std::string& group) {
  std::ifstream file(group + "/cpu.max");
  double quota = 0;
  double period = 0;
  return file >> quota >> period ? whole_cores(quota, period) : kNoLimit;
}

// Reads a quota of version 1, where -1 means that there is none.
int limit_v1(const std::string& group) {
  std::ifstream quota_file(group + "/cpu.cfs_quota_us");
  std::ifstream period_file(group + "/cpu.cfs_period_us");
  double quota = 0;
  double period = 0;
  const bool both = (quota_file >> quota) && (period_file >> period);
  return both ? whole_cores(quota, period) : kNoLimit;
}

// Returns the lowest limit of the group `path` and of the groups above it. In a
// container, the path may be that on the host; groups that do not exist under `mount`
// are skipped.
template <typename Limit>
int least_limit(const std::string& mount, std::string path, Limit limit) {
  int least = kNoLimit;
  while (true) {
    least = std::min(least, limit(mount + path));
    const std::size_t slash = path.rfind('/');
    if (slash == std::string::npos) return least;
    path.resize(slash);
  }
}

// Returns whether a list such as "cpu,cpuacct" contains `wanted`.
bool lists(std::string_view controllers, std::string_view wanted) {
  while (!controllers.empty()) {
    const std::size_t comma = std::min(controllers.find(','), controllers.size());
    if (controllers.substr(0, comma) == wanted) return true;
    controllers.remove_prefix(std::min(comma + 1, controllers.size()));
  }
  return false;
}

int cores_by_affinity() {
  // The kernel rejects a set that is smaller than its number of processors.
  for (int processors = 1024; processors <= 1 << 20; processors *= 4) {
    const std::size_t nbytes = CPU_ALLOC_SIZE(processors);
    std::vector<cpu_set_t> set(nbytes / sizeof(cpu_set_t) + 1);
    if (sched_getaffinity(0, nbytes, set.data()) == 0) {
      return CPU_COUNT_S(nbytes, set.data());
    }
  }
  return 1;
}

}  // namespace

int cores_by_quota(const std::string& root) {
  const std::string mounts = root + "/sys/fs/cgroup";
  std::ifstream file(root + "/proc/self/cgroup");
  int least = kNoLimit;
  // Lines have the form `number:controllers:path`; in version 2 the controllers are
  // empty.
  for (std::string line; std::getline(file, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string path = line.substr(second + 1);
    if (controllers.empty()) {
      least = std::min({least, least_limit(mounts, path, limit_v2),
                        least_limit(mounts + "/unified", path, limit_v2)});
    } else if (lists(controllers, "cpu")) {
      least = std::min({least, least_limit(mounts + "/cpu", path, limit_v1),
                        least_limit(mounts + "/" + controllers, path, limit_v1)});
    }
  }
  return least;
}

int usable_cores() {
  return std::max(1, std::min(cores_by_affinity(), cores_by_quota("")));
}

}  // namespace bluecomm
