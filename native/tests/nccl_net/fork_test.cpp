// A fork while other threads are in the midst of what has process-wide locks.
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

[[maybe_unused]] const std::map<std::string, std::string> kLoopback{
    {"NCCL_SOCKET_IFNAME", "=lo"}};

// How a child ends that does `body`; one that hangs is ended.
[[maybe_unused]] int status_of_child(const std::function<void()>& body) {
  const int child = fork();
  if (child == 0) {
    // Its parent may be ended first.
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

// Those of ASan's allocator are not, so it cannot be tested with it.
#if !defined(__SANITIZE_ADDRESS__)
TEST(net_fork, a_child_finds_all_locks_free) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(12);
    const auto channels = open_channels(*player, actor, 8);
    std::atomic<bool> over = false;
    // Nearly always in the one, waiting for the other: process, connection.
    std::thread asking([&] {
      while (!over) {
        CHECK(!player->counters().empty());
        std::this_thread::yield();
      }
    });
    std::thread listening([&] {
      while (!over) {
        HandleBytes handle{};
        void* comm = nullptr;
        CHECK_EQ(player->listen(0, handle, &comm), abi::kSuccess);
        CHECK_EQ(player->close_listen(comm), abi::kSuccess);
      }
    });
    for (int k = 0; k < 5; ++k) {
      const int status = status_of_child([&] {
        CHECK(!player->counters().empty());
        for (const Channel& one : channels) close_channel(*player, one);
      });
      CHECK_EQ(status, 0);
    }
    over = true;
    asking.join();
    listening.join();
    run_traffic(*player, actor, channels, 5);
    for (const Channel& one : channels) close_channel(*player, one);
  });
}
#endif

}  // namespace
}  // namespace bluecomm::test
