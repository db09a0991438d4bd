// Forks while other threads hold process-wide locks of the plugin.
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

[[maybe_unused]] const std::map<std::string, std::string> kLoopbackOnly{
    {"NCCL_SOCKET_IFNAME", "=lo"}};

// Runs `body` in a forked child and returns its wait status. Kills a child that hangs.
[[maybe_unused]] int status_of_child(const std::function<void()>& body) {
  const int child = fork();
  if (child == 0) {
    // The parent may be killed first.
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    body();
    _exit(failures_so_far() == 0 ? 0 : 1);
  }
  int status = -1;
  try {
    spin_until("the child", [&] { return waitpid(child, &status, WNOHANG) != 0; });
  } catch (const std::exception&) {
    kill(child, SIGKILL);
    waitpid(child, &status, 0);
  }
  return status;
}

// Not built with ASan, whose allocator's locks may be held in the child.
#if !defined(__SANITIZE_ADDRESS__)
TEST(nccl_net_fork, a_child_finds_all_locks_free) {
  run_ranks_in_both_modes(kLoopbackOnly, [](TestRank& rank) {
    const auto client = start_client(12);
    const auto pairs = open_comm_pairs(*client, rank, 8);
    std::atomic<bool> over = false;
    // This thread almost always holds the process-wide lock while it waits for a
    // connection's lock.
    std::thread asking([&] {
      while (!over) {
        CHECK(!client->counters().empty());
        std::this_thread::yield();
      }
    });
    std::thread listening([&] {
      while (!over) {
        HandleBytes handle{};
        void* comm = nullptr;
        CHECK_EQ(client->listen(0, handle, &comm), abi::kSuccess);
        CHECK_EQ(client->close_listen(comm), abi::kSuccess);
      }
    });
    for (int k = 0; k < 5; ++k) {
      const int status = status_of_child([&] {
        CHECK(!client->counters().empty());
        for (const CommPair& one : pairs) close_comm_pair(*client, one);
      });
      CHECK_EQ(status, 0);
    }
    over = true;
    asking.join();
    listening.join();
    run_traffic(*client, rank, pairs, 5);
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}
#endif

}  // namespace
}  // namespace bluecomm::test
