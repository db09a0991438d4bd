// Results at one end of an open connection when the other one dies, freezes, forks,
// closes early or posts a buffer that is too small.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <span>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

// A timeout that a peer exceeds only if it is frozen: it beats every 500 ms, and a busy
// machine may keep its thread waiting for seconds.
const Variables kSilence{{"NCCL_SOCKET_IFNAME", "=lo"},
                         {"BLUECOMM_NET_TIMEOUT_S", "4"}};

// Calls test() until the request completes or fails; returns the last result.
int result_of_test(PluginClient& client, void* request) {
  int done = 0;
  int result = abi::kSuccess;
  spin_until("the request to complete", [&] {
    result = client.test(request, &done, nullptr);
    return result != abi::kSuccess || done != 0;
  });
  return result;
}

// A send and a receive that the peer does not match. The message is too long to be sent
// without a receive.
struct PendingPair {
  static constexpr std::size_t kNbytes = 5 << 20;

  PendingPair(PluginClient& client, const CommPair& pair) : memory(2 * kNbytes) {
    const auto halves = std::span(memory);
    REQUIRE(client.isend(pair.send, halves.first(kNbytes), 0, &send) == abi::kSuccess);
    REQUIRE(client.irecv(pair.recv, halves.last(kNbytes), 0, &recv) == abi::kSuccess);
    REQUIRE(send != nullptr && recv != nullptr);
  }

  std::vector<std::byte> memory;
  void* send = nullptr;
  void* recv = nullptr;
};

void observe_loss(const TestRank& rank) {
  const auto client = start_client(11);
  const CommPair pair = open_comm_pair(*client, rank);
  // The peer does nothing more from here on.
  rank.barrier();
  const PendingPair waiting(*client, pair);
  rank.report();
  CHECK_EQ(result_of_test(*client, waiting.send), abi::kRemoteError);
  CHECK_EQ(result_of_test(*client, waiting.recv), abi::kRemoteError);
  void* request = nullptr;
  std::byte byte{};
  CHECK_EQ(client->isend(pair.send, {&byte, 1}, 0, &request), abi::kRemoteError);
  CHECK(request == nullptr);
  close_comm_pair(*client, pair);
  rank.report();
}

void wait_to_be_lost(const TestRank& rank) {
  const auto client = start_client(11);
  open_comm_pair(*client, rank);
  rank.barrier();
  rank.report();
  rank.wait();
}

void run_loss(TestRank& rank) {
  if (rank.number() == 0) {
    observe_loss(rank);
  } else {
    wait_to_be_lost(rank);
  }
}

TEST(nccl_net_peer_faults, a_killed_peer_is_a_remote_error) {
  run_ranks_in_both_modes(kLongTimeout, run_loss, [](Controller& controller) {
    controller.wait_for_report(1);
    controller.wait_for_report(0);
    controller.kill(1);
    controller.wait_for_report(0);
  });
}

TEST(nccl_net_peer_faults, a_frozen_peer_is_a_remote_error) {
  run_ranks_in_both_modes(kSilence, run_loss, [](Controller& controller) {
    controller.wait_for_report(1);
    controller.signal(1, SIGSTOP);
    controller.wait_for_report(0);
    controller.wait_for_report(0);
    controller.kill(1);
  });
}

TEST(nccl_net_peer_faults, an_idle_peer_is_no_error) {
  run_ranks(
      kSilence,
      [](TestRank& rank) {
        const auto client = start_client(11);
        const CommPair pair = open_comm_pair(*client, rank);
        if (rank.number() == 1) {
          rank.wait();
        } else {
          const PendingPair waiting(*client, pair);
          // Waits for the heartbeats of five seconds, which is longer than the timeout.
          const auto received = [&] {
            const std::string text = client->counters();
            const std::string key = "\"bytes_received\": ";
            const auto at = text.rfind(key);
            return at == std::string::npos ? 0
                                           : std::atoi(text.c_str() + at + key.size());
          };
          const int before = received();
          spin_until("heartbeats", [&] {
            int done = 0;
            REQUIRE(client->test(waiting.recv, &done, nullptr) == abi::kSuccess);
            REQUIRE(client->test(waiting.send, &done, nullptr) == abi::kSuccess);
            return received() >= before + 10 * 24;
          });
          rank.report();
        }
        close_comm_pair(*client, pair);
      },
      [](Controller& controller) {
        controller.wait_for_report(0);
        controller.release(1);
      });
}

TEST(nccl_net_peer_faults, a_receive_too_small_is_an_error_at_both_ends) {
  for (const std::size_t nbytes : {std::size_t{2000}, std::size_t{200'000}}) {
    run_ranks_in_both_modes(kLongTimeout, [nbytes](TestRank& rank) {
      const auto client = start_client(9);
      const CommPair pair = open_comm_pair(*client, rank);
      std::vector<std::byte> memory(nbytes);
      void* request = nullptr;
      if (rank.number() == 0) {
        REQUIRE(client->isend(pair.send, memory, 0, &request) == abi::kSuccess);
        // The kernel may have taken a short message before the receiver refuses it.
        spin_until("the refusal", [&] {
          int done = 0;
          if (request == nullptr || client->test(request, &done, nullptr) == 5)
            return true;
          if (done != 0) {
            request = nullptr;
            return client->isend(pair.send, memory, 0, &request) == 5;
          }
          return false;
        });
        CHECK_EQ(client->isend(pair.send, memory, 0, &request), abi::kInvalidUsage);
        rank.barrier();
      } else {
        REQUIRE(client->irecv(pair.recv, std::span(memory).first(nbytes - 1), 0,
                              &request) == abi::kSuccess);
        CHECK_EQ(result_of_test(*client, request), abi::kInvalidUsage);
        rank.barrier();
      }
      close_comm_pair(*client, pair);
    });
  }
}

TEST(nccl_net_peer_faults, closing_in_flight_touches_no_memory_afterwards) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    const auto client = start_client(12);
    for (const bool recv_first : {true, false}) {
      const CommPair pair = open_comm_pair(*client, rank);
      {
        std::vector<std::byte> memory(16 << 20);
        for (std::size_t k = 0; k < 8; ++k) {
          void* request = nullptr;
          const auto part = std::span(memory).subspan(k << 20, 1 << 20);
          const int result = client->irecv(pair.recv, part, 0, &request);
          // The peer may have already closed the connection.
          REQUIRE(result == abi::kSuccess || result == abi::kRemoteError);
        }
        for (std::size_t k = 8; k < 16; ++k) {
          void* request = nullptr;
          const auto part = std::span(memory).subspan(k << 20, 1 << 20);
          const int result = client->isend(pair.send, part, 0, &request);
          REQUIRE(result == abi::kSuccess || result == abi::kRemoteError);
        }
        if (recv_first) CHECK_EQ(client->close_recv(pair.recv), abi::kSuccess);
        CHECK_EQ(client->close_send(pair.send), abi::kSuccess);
        if (!recv_first) CHECK_EQ(client->close_recv(pair.recv), abi::kSuccess);
      }
      rank.barrier();
    }
  });
}

TEST(nccl_net_peer_faults, a_send_taken_by_the_kernel_completes_whatever_follows) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    const auto client = start_client(11);
    const CommPair pair = open_comm_pair(*client, rank);
    std::vector<std::byte> memory(1000);
    void* request = nullptr;
    if (rank.number() == 1) {
      REQUIRE(client->irecv(pair.recv, memory, 0, &request) == abi::kSuccess);
      CHECK_EQ(result_of_test(*client, request), abi::kSuccess);
      close_comm_pair(*client, pair);
      rank.barrier();
      return;
    }
    REQUIRE(client->isend(pair.send, memory, 0, &request) == abi::kSuccess);
    // The peer has received the message and exited before this end tests the request.
    rank.barrier();
    spin_until("the end of the connection", [&] {
      void* more = nullptr;
      return client->isend(pair.send, memory, 0, &more) == abi::kRemoteError;
    });
    CHECK_EQ(result_of_test(*client, request), abi::kSuccess);
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_peer_faults, a_forked_child_keeps_no_connection_open) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    const auto client = start_client(11);
    const CommPair pair = open_comm_pair(*client, rank);
    run_traffic(*client, rank, {&pair, 1}, 10);
    rank.barrier();
    if (rank.number() == 1) {
      std::byte byte{};
      void* request = nullptr;
      // The peer may have already closed the connection.
      int result = client->irecv(pair.recv, {&byte, 1}, 0, &request);
      if (result == abi::kSuccess) result = result_of_test(*client, request);
      CHECK_EQ(result, abi::kRemoteError);
      close_comm_pair(*client, pair);
      rank.barrier();
      return;
    }
    int line[2];
    REQUIRE(pipe(line) == 0);
    const int child = fork();
    if (child == 0) {
      // Keeps its copies of the descriptors until the test has finished.
      close(line[1]);
      char word = 0;
      _exit(read(line[0], &word, 1) == 0 ? 0 : 1);
    }
    // The parent closes its connection while the child exists.
    close(line[0]);
    close_comm_pair(*client, pair);
    rank.barrier();
    close(line[1]);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
  });
}

}  // namespace
}  // namespace bluecomm::test
