#include "common/cores.h"

#include <sched.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <thread>

#include "tests/check.h"
#include "tests/transport/shm_support.h"

namespace bluecomm::test {
namespace {

constexpr int kNoLimit = std::numeric_limits<int>::max();

// A file system root that contains nothing but control groups.
class Root {
 public:
  void write(const std::string& path, const std::string& text) {
    const std::filesystem::path file = directory_.path() + path;
    std::filesystem::create_directories(file.parent_path());
    std::ofstream(file) << text;
  }
  int cores() const { return cores_by_quota(directory_.path()); }

 private:
  TemporaryDirectory directory_;
};

TEST(cores, has_no_limit_without_control_groups) {
  Root root;
  CHECK_EQ(root.cores(), kNoLimit);
  root.write("/proc/self/cgroup", "no such line\n0::/job\n");
  CHECK_EQ(root.cores(), kNoLimit);
}

TEST(cores, reads_quotas_of_version_2_up_to_the_root) {
  Root root;
  root.write("/proc/self/cgroup", "0::/slice/job\n");
  root.write("/sys/fs/cgroup/slice/job/cpu.max", "max 100000\n");
  CHECK_EQ(root.cores(), kNoLimit);
  root.write("/sys/fs/cgroup/slice/cpu.max", "350000 100000\n");
  CHECK_EQ(root.cores(), 3);
  root.write("/sys/fs/cgroup/slice/job/cpu.max", "50000 100000\n");
  CHECK_EQ(root.cores(), 0);
}

TEST(cores, reads_quotas_of_version_1_wherever_they_are_mounted) {
  Root root;
  root.write("/proc/self/cgroup", "5:cpuset:/\n3:cpu,cpuacct:/docker/abc\n0::/\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_quota_us", "-1\n");
  root.write("/sys/fs/cgroup/cpu,cpuacct/docker/abc/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(root.cores(), kNoLimit);
  // A container sees its own group as the root of the mount.
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_quota_us", "200000\n");
  root.write("/sys/fs/cgroup/cpu/cpu.cfs_period_us", "100000\n");
  CHECK_EQ(root.cores(), 2);
}

TEST(cores, respects_the_affinity_mask) {
  // Runs in its own thread, so that no other test is pinned.
  std::thread([] {
    cpu_set_t all;
    CPU_ZERO(&all);
    CHECK_EQ(sched_getaffinity(0, sizeof all, &all), 0);
    CHECK(usable_cores() >= 1 && usable_cores() <= CPU_COUNT(&all));
    int first = 0;
    while (!CPU_ISSET(first, &all)) ++first;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(first, &one);
    CHECK_EQ(sched_setaffinity(0, sizeof one, &one), 0);
    CHECK_EQ(usable_cores(), 1);
  }).join();
}

}  // namespace
}  // namespace bluecomm::test
