// What becomes of the other end when one dies, freezes, lies or forks; and of a
// listener at which strangers knock.
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "stream/handshake.h"
#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

using Variables = std::map<std::string, std::string>;

// So long a timeout that what is noticed before is noticed by other means.
const Variables kPatient{{"NCCL_SOCKET_IFNAME", "=lo"},
                         {"BLUECOMM_NET_TIMEOUT_S", "600"}};
const Variables kHasty{{"NCCL_SOCKET_IFNAME", "=lo"}, {"BLUECOMM_NET_TIMEOUT_S", "2"}};

int result_of_test(PluginClient& client, void* request) {
  int done = 0;
  int result = abi::kSuccess;
  spin_until("the request ends", [&] {
    result = client.test(request, &done, nullptr);
    return result != abi::kSuccess || done != 0;
  });
  return result;
}

// A send that waits for its receive, and a receive that waits for its send.
struct Waiting {
  Waiting(PluginClient& client, const CommPair& pair) : memory(2 << 20) {
    const auto halves = std::span(memory);
    REQUIRE(client.isend(pair.send, halves.first(1 << 20), 0, &send) == abi::kSuccess);
    REQUIRE(client.irecv(pair.recv, halves.last(1 << 20), 0, &recv) == abi::kSuccess);
    REQUIRE(send != nullptr && recv != nullptr);
  }

  std::vector<std::byte> memory;
  void* send = nullptr;
  void* recv = nullptr;
};

void expect_loss(const TestRank& rank) {
  const auto client = start_client(11);
  const CommPair pair = open_comm_pair(*client, rank);
  // The other end stays as it is from here on.
  rank.barrier();
  const Waiting waiting(*client, pair);
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

void be_lost(const TestRank& rank) {
  const auto client = start_client(11);
  open_comm_pair(*client, rank);
  rank.barrier();
  rank.report();
  rank.wait();
}

void play_loss(TestRank& rank) {
  if (rank.number() == 0) {
    expect_loss(rank);
  } else {
    be_lost(rank);
  }
}

TEST(nccl_net_faults, a_killed_peer_is_a_remote_error) {
  run_ranks_in_both_modes(kPatient, play_loss, [](Controller& controller) {
    controller.wait_for_report(1);
    controller.wait_for_report(0);
    controller.kill(1);
    controller.wait_for_report(0);
  });
}

TEST(nccl_net_faults, a_frozen_peer_is_a_remote_error) {
  run_ranks_in_both_modes(kHasty, play_loss, [](Controller& controller) {
    controller.wait_for_report(1);
    controller.signal(1, SIGSTOP);
    controller.wait_for_report(0);
    controller.wait_for_report(0);
    controller.kill(1);
  });
}

TEST(nccl_net_faults, an_idle_peer_is_no_error) {
  run_ranks(
      kHasty,
      [](TestRank& rank) {
        const auto client = start_client(11);
        const CommPair pair = open_comm_pair(*client, rank);
        if (rank.number() == 1) {
          rank.wait();
        } else {
          const Waiting waiting(*client, pair);
          // Heartbeats of three seconds, which is more than the timeout.
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
            return received() >= before + 6 * 24;
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

TEST(nccl_net_faults, a_receive_too_small_is_an_error_at_both_ends) {
  for (const std::size_t nbytes : {std::size_t{2000}, std::size_t{200'000}}) {
    run_ranks_in_both_modes(kPatient, [nbytes](TestRank& rank) {
      const auto client = start_client(9);
      const CommPair pair = open_comm_pair(*client, rank);
      std::vector<std::byte> memory(nbytes);
      void* request = nullptr;
      if (rank.number() == 0) {
        REQUIRE(client->isend(pair.send, memory, 0, &request) == abi::kSuccess);
        // A short one may be in the kernel's hands before the receiver complains.
        spin_until("the refusal comes", [&] {
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

TEST(nccl_net_faults, closing_in_flight_touches_no_memory_afterwards) {
  run_ranks_in_both_modes(kPatient, [](TestRank& rank) {
    const auto client = start_client(12);
    for (const bool recv_first : {true, false}) {
      const CommPair pair = open_comm_pair(*client, rank);
      {
        std::vector<std::byte> memory(16 << 20);
        for (std::size_t k = 0; k < 8; ++k) {
          void* request = nullptr;
          const auto part = std::span(memory).subspan(k << 20, 1 << 20);
          REQUIRE(client->irecv(pair.recv, part, 0, &request) == abi::kSuccess);
        }
        for (std::size_t k = 8; k < 16; ++k) {
          void* request = nullptr;
          const auto part = std::span(memory).subspan(k << 20, 1 << 20);
          const int result = client->isend(pair.send, part, 0, &request);
          // The other end may have closed already.
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

TEST(nccl_net_faults, a_send_that_was_taken_is_done_whatever_follows) {
  run_ranks_in_both_modes(kPatient, [](TestRank& rank) {
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
    // The peer has it, and is gone, before this end asks what became of it.
    rank.barrier();
    spin_until("the end is noticed", [&] {
      void* more = nullptr;
      return client->isend(pair.send, memory, 0, &more) == abi::kRemoteError;
    });
    CHECK_EQ(result_of_test(*client, request), abi::kSuccess);
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_faults, a_fork_keeps_no_connection_up) {
  run_ranks_in_both_modes(kPatient, [](TestRank& rank) {
    const auto client = start_client(11);
    const CommPair pair = open_comm_pair(*client, rank);
    run_traffic(*client, rank, {&pair, 1}, 10);
    rank.barrier();
    if (rank.number() == 1) {
      std::byte byte{};
      void* request = nullptr;
      // The other end may have closed already.
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
      // Sits on its copies until the test is over.
      close(line[1]);
      char word = 0;
      _exit(read(line[0], &word, 1) == 0 ? 0 : 1);
    }
    // The parent goes on as before, then closes.
    close(line[0]);
    close_comm_pair(*client, pair);
    rank.barrier();
    close(line[1]);
    int status = -1;
    waitpid(child, &status, 0);
    CHECK_EQ(status, 0);
  });
}

// A handle has the listener's address after its magic, the attempt and the name.
sockaddr_in address_in(const HandleBytes& handle) {
  sockaddr_in address;
  std::memcpy(&address, handle.data() + 32, sizeof address);
  return address;
}

UniqueFd knock(const HandleBytes& handle, std::span<const std::byte> words) {
  const sockaddr_in address = address_in(handle);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) == 0);
  REQUIRE(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(words.size()));
  return fd;
}

TEST(nccl_net_faults, strangers_do_not_disturb) {
  run_ranks(kPatient, [](TestRank& rank) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
    const HandleBytes mine = handle;
    HandleBytes theirs = rank.exchange(handle);

    stream::Hello hello;
    hello.from = 0;
    hello.to = 1;
    const auto half = std::as_bytes(std::span(&hello, 1)).first(50);
    auto older = hello;
    older.magic.back() = '1';
    std::vector<std::byte> forged(sizeof hello + 32, std::byte{0});
    std::memcpy(forged.data(), &hello, sizeof hello);
    const std::string http = "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n";

    std::vector<UniqueFd> strangers;
    for (int k = 0; k < 20; ++k) {
      strangers.push_back(knock(mine, {}));
      strangers.push_back(knock(mine, half));
      strangers.push_back(knock(mine, std::as_bytes(std::span(&older, 1))));
      strangers.push_back(knock(mine, forged));
      strangers.push_back(knock(mine, std::as_bytes(std::span(http))));
      knock(mine, half);  // and gone
    }
    CommPair pair;
    spin_until("connect and accept", [&] {
      if (pair.send == nullptr) {
        REQUIRE(client->connect(0, theirs, &pair.send) == abi::kSuccess);
      }
      if (pair.recv == nullptr) {
        REQUIRE(client->accept(listen_comm, &pair.recv) == abi::kSuccess);
      }
      return pair.send != nullptr && pair.recv != nullptr;
    });
    run_traffic(*client, rank, {&pair, 1}, 20);
    CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_faults, another_key_is_not_let_in) {
  run_ranks(kHasty, [](TestRank& rank) {
    setenv("BLUECOMM_NET_KEY", rank.number() == 0 ? "one" : "another", 1);
    const auto client = start_client(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
    handle = rank.exchange(handle);
    void* send = nullptr;
    int result = abi::kSuccess;
    spin_until("connect fails", [&] {
      void* recv = nullptr;
      REQUIRE(client->accept(listen_comm, &recv) == abi::kSuccess);
      REQUIRE(recv == nullptr);
      result = client->connect(0, handle, &send);
      REQUIRE(send == nullptr);
      return result != abi::kSuccess;
    });
    CHECK_EQ(result, abi::kRemoteError);
    rank.barrier();
    CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
  });
}

TEST(nccl_net_faults, a_listener_that_is_gone_is_a_remote_error) {
  run_ranks(kHasty, [](TestRank&) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* comm = nullptr;
    REQUIRE(client->listen(0, handle, &comm) == abi::kSuccess);
    REQUIRE(client->close_listen(comm) == abi::kSuccess);
    int result = abi::kSuccess;
    spin_until("connect fails", [&] {
      result = client->connect(0, handle, &comm);
      return result != abi::kSuccess;
    });
    CHECK_EQ(result, abi::kRemoteError);
    // NCCL's memory is as listen() had filled it: it may be tried again.
    CHECK_EQ(client->connect(0, handle, &comm), abi::kSuccess);
  });
}

TEST(nccl_net_faults, handles_of_others_are_refused) {
  run_ranks(kPatient, [](TestRank&) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* comm = nullptr;
    CHECK_EQ(client->connect(0, handle, &comm), abi::kInvalidUsage);
    REQUIRE(client->listen(0, handle, &comm) == abi::kSuccess);
    HandleBytes stale = handle;
    stale[8] = std::byte{99};  // an attempt that never was
    void* send = nullptr;
    CHECK_EQ(client->connect(0, stale, &send), abi::kInvalidUsage);
    CHECK_EQ(client->close_listen(comm), abi::kSuccess);
  });
}

TEST(nccl_net_faults, bad_settings_make_nccl_pass_the_plugin_over) {
  run_ranks(kPatient, [](TestRank&) {
    const auto client = PluginClient::load(11);
    setenv("BLUECOMM_NET_STREAM", "3", 1);
    CHECK_EQ(client->init(), abi::kInvalidArgument);
    unsetenv("BLUECOMM_NET_STREAM");
    setenv("NCCL_SOCKET_IFNAME", "=nosuchcard", 1);
    CHECK_EQ(client->init(), abi::kSystemError);
    setenv("NCCL_SOCKET_IFNAME", "=lo", 1);
    CHECK_EQ(client->init(), abi::kSuccess);
  });
}

// The checks of UBSan, which comes with ASan, need descriptors themselves.
#if !defined(__SANITIZE_ADDRESS__)
TEST(nccl_net_faults, no_more_descriptors_is_a_system_error) {
  run_ranks(kPatient, [](TestRank&) {
    const auto client = start_client(11);
    rlimit before{};
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const int next = fcntl(0, F_DUPFD, 0);
    close(next);
    rlimit none = before;
    none.rlim_cur = static_cast<rlim_t>(next);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    HandleBytes handle{};
    void* comm = nullptr;
    CHECK_EQ(client->listen(0, handle, &comm), abi::kSystemError);
    CHECK(comm == nullptr);
    REQUIRE(setrlimit(RLIMIT_NOFILE, &before) == 0);
    CHECK_EQ(client->listen(0, handle, &comm), abi::kSuccess);
    CHECK_EQ(client->close_listen(comm), abi::kSuccess);
  });
}
#endif

}  // namespace
}  // namespace bluecomm::test
