#include <filesystem>

#include "tests/check.h"
#include "tests/transport/shm_support.h"
#include "transport/shm/probe.h"

namespace bluecomm::test {
namespace {

TEST(shm_probe, finds_that_shared_memory_works_and_leaves_nothing) {
  const TemporaryDirectory directory;
  CHECK_EQ(probe_shm(directory.path(), 3), std::string());
  CHECK(std::filesystem::is_empty(directory.path()));
}

TEST(shm_probe, says_why_it_does_not) {
  CHECK(!probe_shm("/nowhere/at/all", 3).empty());
}

}  // namespace
}  // namespace bluecomm::test
