// Errors while a connection is opened: strangers, wrong keys and handles, closed
// listeners, invalid settings and a lack of descriptors.
#include <fcntl.h>
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <span>
#include <string>
#include <vector>

#include "common/fd.h"
#include "stream/handshake.h"
#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

// Where a handle has the check value of the listener's key: after the magic, the
// connect id, the name and the address.
constexpr std::ptrdiff_t kKeyCheckAt = 60;

// Returns the listener's address, which follows the magic, the connect id and the name.
sockaddr_in address_in(const HandleBytes& handle) {
  sockaddr_in address;
  std::memcpy(&address, handle.data() + 32, sizeof address);
  return address;
}

// Connects to the listener of `handle` and sends these bytes.
UniqueFd connect_and_send(const HandleBytes& handle, std::span<const std::byte> words) {
  const sockaddr_in address = address_in(handle);
  UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(fd.get(), reinterpret_cast<const sockaddr*>(&address),
                  sizeof address) == 0);
  REQUIRE(send(fd.get(), words.data(), words.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(words.size()));
  return fd;
}

TEST(nccl_net_opening_faults, strangers_do_not_disturb) {
  run_ranks(kLongTimeout, [](TestRank& rank) {
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
      strangers.push_back(connect_and_send(mine, {}));
      strangers.push_back(connect_and_send(mine, half));
      strangers.push_back(connect_and_send(mine, std::as_bytes(std::span(&older, 1))));
      strangers.push_back(connect_and_send(mine, forged));
      strangers.push_back(connect_and_send(mine, std::as_bytes(std::span(http))));
      connect_and_send(mine, half);  // and closes immediately
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

TEST(nccl_net_opening_faults, the_first_connect_names_a_key_that_differs) {
  run_ranks(kShortTimeout, [](TestRank& rank) {
    // Rank 1 has no key.
    if (rank.number() == 0) setenv("BLUECOMM_NET_KEY", "one", 1);
    const auto client = start_client(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
    handle = rank.exchange(handle);
    void* send = nullptr;
    CHECK_EQ(client->connect(0, handle, &send), abi::kInvalidUsage);
    CHECK(send == nullptr);
    const std::string& warning = logged_warning();
    CHECK(warning.find("BLUECOMM_NET_KEY differs") != std::string::npos);
    const std::string mine = rank.number() == 0 ? "has another key" : "has none";
    CHECK(warning.find(mine) != std::string::npos);
    rank.barrier();
    CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
  });
}

// The handle does not say that the keys differ, so the handshake has to.
TEST(nccl_net_opening_faults, a_sender_with_another_key_is_not_accepted) {
  run_ranks(kShortTimeout, [](TestRank& rank) {
    setenv("BLUECOMM_NET_KEY", rank.number() == 0 ? "one" : "another", 1);
    const auto client = start_client(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
    const HandleBytes mine = handle;
    handle = rank.exchange(handle);
    std::copy_n(mine.begin() + kKeyCheckAt, 2, handle.begin() + kKeyCheckAt);
    void* send = nullptr;
    int result = abi::kSuccess;
    spin_until("connect to fail", [&] {
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

TEST(nccl_net_opening_faults, a_closed_listener_is_a_remote_error) {
  run_ranks(kShortTimeout, [](TestRank&) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* comm = nullptr;
    REQUIRE(client->listen(0, handle, &comm) == abi::kSuccess);
    REQUIRE(client->close_listen(comm) == abi::kSuccess);
    int result = abi::kSuccess;
    spin_until("connect to fail", [&] {
      result = client->connect(0, handle, &comm);
      return result != abi::kSuccess;
    });
    CHECK_EQ(result, abi::kRemoteError);
    // The failed call has restored the handle, so it can be used again.
    CHECK_EQ(client->connect(0, handle, &comm), abi::kSuccess);
  });
}

TEST(nccl_net_opening_faults, foreign_handles_are_refused) {
  run_ranks(kLongTimeout, [](TestRank&) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* comm = nullptr;
    CHECK_EQ(client->connect(0, handle, &comm), abi::kInvalidUsage);
    REQUIRE(client->listen(0, handle, &comm) == abi::kSuccess);
    HandleBytes stale = handle;
    stale[8] = std::byte{99};  // a connect id that does not exist
    void* send = nullptr;
    CHECK_EQ(client->connect(0, stale, &send), abi::kInvalidUsage);
    CHECK_EQ(client->close_listen(comm), abi::kSuccess);
  });
}

TEST(nccl_net_opening_faults, invalid_settings_make_init_fail) {
  run_ranks(kLongTimeout, [](TestRank&) {
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

// UBSan, which is enabled together with ASan, needs descriptors itself.
#if !defined(__SANITIZE_ADDRESS__)
TEST(nccl_net_opening_faults, running_out_of_descriptors_is_a_system_error) {
  run_ranks(kLongTimeout, [](TestRank&) {
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
