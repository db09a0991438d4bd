// The plugin's I/O threads: their number, their lifetime, and what they do while no
// call runs. The tests of the calls run with I/O threads, too.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <set>
#include <thread>

#include "nccl_net/cpus.h"
#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

constexpr int kThreads = 3;
const std::map<std::string, std::string> kThree{{"NCCL_SOCKET_IFNAME", "=lo"},
                                                {"BLUECOMM_NET_TIMEOUT_S", "600"},
                                                {"BLUECOMM_NET_THREADS", "3"}};

// Returns the /proc folders of this process's threads of this name.
std::vector<std::filesystem::path> threads_named(const std::string& start) {
  std::vector<std::filesystem::path> found;
  for (const auto& task : std::filesystem::directory_iterator("/proc/self/task")) {
    std::ifstream file(task.path() / "comm");
    std::string name;
    // A thread that has ended in the meantime has no file.
    if (std::getline(file, name) && name.starts_with(start)) {
      found.push_back(task.path());
    }
  }
  return found;
}

void wait_for_threads(const std::string& start, int count) {
  spin_until("threads", [&] {
    return threads_named(start).size() == static_cast<std::size_t>(count);
  });
}

std::string status_of(const std::filesystem::path& task, const std::string& key) {
  std::ifstream file(task / "status");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(key)) return line.substr(line.find_last_of(" \t") + 1);
  }
  return "";
}

// Returns the CPU time of this process's threads of this name, in ticks of the clock.
long ticks_of(const std::string& start) {
  long total = 0;
  for (const auto& task : threads_named(start)) {
    std::ifstream file(task / "stat");
    std::string skipped;
    std::getline(file, skipped, ')');  // the id and the name
    for (int field = 0; field < 11; ++field) file >> skipped;
    long user = 0;
    long system = 0;
    if (file >> user >> system) total += user + system;
  }
  return total;
}

TEST(nccl_net_io_thread_pool, threads_exist_while_connections_exist) {
  run_ranks(kThree, [](TestRank& rank) {
    // Three versions, each of which loads and unloads the library.
    for (const int version : {6, 8, 12}) {
      const auto client = start_client(version);
      CHECK_EQ(threads_named("bluecomm-net-io").size(), 0u);
      const auto pairs = open_comm_pairs(*client, rank, 2);
      wait_for_threads("bluecomm-net-io", kThreads);
      run_traffic(*client, rank, pairs, 10);
      close_comm_pair(*client, pairs[0]);
      CHECK_EQ(threads_named("bluecomm-net-io").size(), std::size_t{kThreads});
      close_comm_pair(*client, pairs[1]);
      // The kernel removes a thread from /proc shortly after it was joined.
      wait_for_threads("bluecomm-", 0);
      CHECK_EQ(client->finalize(), abi::kSuccess);
    }
  });
}

TEST(nccl_net_io_thread_pool, no_thread_exists_unless_configured) {
  auto none = kThree;
  none["BLUECOMM_NET_THREADS"] = "0";
  run_ranks(none, [](TestRank& rank) {
    const auto client = start_client(12);
    const CommPair pair = open_comm_pair(*client, rank);
    run_traffic(*client, rank, {&pair, 1}, 10);
    CHECK_EQ(threads_named("bluecomm-net-io").size(), 0u);
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_io_thread_pool, threads_receive_no_signals_and_are_pinned) {
  auto ranked = kThree;
  ranked["LOCAL_RANK"] = "0";
  run_ranks(ranked, [](TestRank& rank) {
    const auto client = start_client(12);
    const auto pairs = open_comm_pairs(*client, rank, 2);
    wait_for_threads("bluecomm-net-io", kThreads);
    std::set<std::string> cpus;
    for (const auto& task : threads_named("bluecomm-net-io")) {
      const std::uint64_t blocked =
          std::stoull(status_of(task, "SigBlk:"), nullptr, 16);
      CHECK((blocked & (std::uint64_t{1} << (SIGUSR1 - 1))) != 0);
      CHECK((blocked & (std::uint64_t{1} << (SIGINT - 1))) != 0);
      // A single number means one CPU, not a range or a list.
      const std::string list = status_of(task, "Cpus_allowed_list:");
      CHECK(!list.empty() && list.find_first_of(",-") == std::string::npos);
      cpus.insert(list);
    }
    CHECK_EQ(cpus.size(), std::min(nccl_net::find_cpus("", "").allowed.size(),
                                   std::size_t{kThreads}));
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

// No call runs while the data moves, so the I/O threads or the housekeeper move it.
TEST(nccl_net_io_thread_pool, bytes_move_without_calls) {
  run_ranks(kThree, [](TestRank& rank) {
    constexpr std::size_t kMessages = 8;
    const auto client = start_client(12);
    const CommPair pair = open_comm_pair(*client, rank);
    // All messages use the same buffers.
    std::vector<std::byte> memory(32 << 20, std::byte(rank.number() == 0 ? 7 : 0));
    std::vector<void*> requests(kMessages);
    for (void*& request : requests) {
      const int result = rank.number() == 0
                             ? client->isend(pair.send, memory, 0, &request)
                             : client->irecv(pair.recv, memory, 0, &request);
      REQUIRE(result == abi::kSuccess && request != nullptr);
    }
    if (rank.number() == 1) {
      spin_until("all bytes",
                 [&] { return received_so_far(*client) >= kMessages * memory.size(); });
      const long of_io_threads = ticks_of("bluecomm-net-io");
      const long of_housekeeper = ticks_of("bluecomm-net") - of_io_threads;
      CHECK(of_io_threads > of_housekeeper);
    }
    rank.barrier();
    for (void* const request : requests) {
      spin_until("the request", [&] {
        int done = 0;
        REQUIRE(client->test(request, &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
    }
    CHECK(std::all_of(memory.begin(), memory.end(),
                      [](std::byte one) { return one == std::byte{7}; }));
    close_comm_pair(*client, pair);
  });
}

// Forks repeatedly while I/O threads move data. The child has no I/O thread, and its
// calls fail. Not built with ASan, whose allocator's locks may be held in the child.
#if !defined(__SANITIZE_ADDRESS__)
TEST(nccl_net_io_thread_pool, a_fork_amid_traffic) {
  run_ranks(kThree, [](TestRank& rank) {
    const auto client = start_client(12);
    const auto pairs = open_comm_pairs(*client, rank, 4);
    std::thread traffic([&] { run_traffic(*client, rank, pairs, 30); });
    for (int k = 0; k < 5; ++k) {
      const int child = fork();
      REQUIRE(child >= 0);
      if (child == 0) _exit(threads_named("bluecomm-").empty() ? 0 : 1);
      int status = -1;
      waitpid(child, &status, 0);
      CHECK_EQ(status, 0);
    }
    traffic.join();
    rank.barrier();
    const int child = fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      std::byte byte{};
      void* request = nullptr;
      int result = client->isend(pairs[0].send, {&byte, 1}, 0, &request);
      int done = 0;
      spin_until("the error", [&] {
        if (result == abi::kSuccess && request != nullptr) {
          result = client->test(request, &done, nullptr);
        }
        return result != abi::kSuccess || done != 0;
      });
      for (const CommPair& one : pairs) close_comm_pair(*client, one);
      _exit(result != abi::kSuccess && failures_so_far() == 0 ? 0 : 1);
    }
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
    run_traffic(*client, rank, pairs, 5);
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
    wait_for_threads("bluecomm-", 0);
  });
}
#endif

}  // namespace
}  // namespace bluecomm::test
