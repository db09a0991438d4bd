// Two processes use the plugin as NCCL does: the order of calls, threads and lifetimes.
#include <algorithm>
#include <atomic>
#include <random>
#include <thread>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

const std::map<std::string, std::string> kLoopback{{"NCCL_SOCKET_IFNAME", "=lo"}};

std::map<std::string, std::string> with(std::map<std::string, std::string> more) {
  more.insert(kLoopback.begin(), kLoopback.end());
  return more;
}

void play_all(const TestRank& rank, int version, int pairs, int messages) {
  const auto client = start_client(version);
  const auto open = open_comm_pairs(*client, rank, pairs);
  run_traffic(*client, rank, open, messages);
  for (const CommPair& one : open) close_comm_pair(*client, one);
  CHECK_EQ(client->finalize(), abi::kSuccess);
}

TEST(nccl_net_conformance, every_version_moves_messages_of_all_sizes_both_ways) {
  for (int version = 6; version <= 12; ++version) {
    run_ranks_in_both_modes(kLoopback,
                            [&](TestRank& rank) { play_all(rank, version, 2, 60); });
  }
}

TEST(nccl_net_conformance, several_streams_and_checksums) {
  const auto both =
      with({{"BLUECOMM_NET_STREAMS", "4"}, {"BLUECOMM_NET_CHECKSUM", "1"}});
  run_ranks_in_both_modes(both, [&](TestRank& rank) { play_all(rank, 11, 2, 100); });
}

TEST(nccl_net_conformance, devices_are_described) {
  run_ranks(kLoopback, [](TestRank&) {
    for (int version = 6; version <= 12; ++version) {
      const auto client = start_client(version);
      CHECK_EQ(std::string(client->name()), std::string("BlueComm"));
      int count = 0;
      client->devices(&count);
      CHECK_EQ(count, 1);
      DeviceProperties device_properties;
      CHECK_EQ(client->properties(0, &device_properties), abi::kSuccess);
      CHECK_EQ(device_properties.name, std::string("lo"));
      CHECK_EQ(device_properties.pci_path, std::string());
      CHECK_EQ(device_properties.ptr_support, abi::kHostMemory);
      CHECK_EQ(device_properties.max_recvs, 1);
      CHECK(device_properties.speed > 0);
      CHECK_EQ(device_properties.max_p2p_bytes,
               version >= 9 ? std::size_t{1} << 40 : 0);
      CHECK_EQ(client->properties(1, &device_properties), abi::kInvalidArgument);
      CHECK(logged_warning().find("device 1 does not exist") != std::string::npos);
    }
  });
}

TEST(nccl_net_conformance, sixty_four_communicators_at_once) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) { play_all(rank, 12, 64, 6); });
}

// Two communicators, each with a thread of its own.
TEST(nccl_net_conformance, two_threads_use_a_communicator_each) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    const auto first = open_comm_pairs(*client, rank, 2);
    const auto second = open_comm_pairs(*client, rank, 2);
    std::atomic<int> failures = 0;
    const auto run = [&](const std::vector<CommPair>& pairs) {
      try {
        run_traffic(*client, rank, pairs, 40);
        for (const CommPair& one : pairs) close_comm_pair(*client, one);
      } catch (...) {
        ++failures;
      }
    };
    std::thread other([&] { run(second); });
    // Registers memory while the other thread moves data.
    std::byte memory[64];
    for (int i = 0; i < 1000; ++i) {
      void* mhandle = nullptr;
      CHECK_EQ(client->reg_mr(first[0].send, memory, sizeof memory, 1, &mhandle),
               abi::kSuccess);
      CHECK_EQ(client->dereg_mr(first[0].send, mhandle), abi::kSuccess);
    }
    run(first);
    other.join();
    CHECK_EQ(failures.load(), 0);
  });
}

// Short messages of one communicator arrive although another one has queued long
// messages that are neither received nor tested.
TEST(nccl_net_conformance, a_busy_communicator_does_not_delay_others) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    const auto pairs = open_comm_pairs(*client, rank, 2);
    const CommPair& busy = pairs[0];
    const std::vector<std::byte> data(32 << 20, std::byte{5});
    std::vector<void*> queued;
    for (int k = 0; k < 32; ++k) {
      queued.push_back(nullptr);
      REQUIRE(client->isend(busy.send, data, 0, &queued.back()) == abi::kSuccess);
      REQUIRE(queued.back() != nullptr);
    }
    run_traffic(*client, rank, std::span(pairs).last(1), 100);
    // Not even the first of them can have completed.
    int done = 0;
    CHECK_EQ(client->test(queued.front(), &done, nullptr), abi::kSuccess);
    CHECK_EQ(done, 0);
    rank.barrier();
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

// A buffer announced to the sender may be longer than the message, and the message may
// be a short one.
TEST(nccl_net_conformance, long_and_short_messages_alternate) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(12);
    const CommPair pair = open_comm_pair(*client, rank);
    std::vector<std::byte> memory(1 << 20);
    for (const std::size_t nbytes : {300'000, 1 << 20, 0, 100, 17'000, 1, 1 << 20}) {
      const std::vector<std::byte> data(nbytes, std::byte(nbytes % 251));
      for (int k = 0; k < 2; ++k) {
        void* recv = abi::kOptionalCompletion;
        REQUIRE(client->irecv(pair.recv, memory, 0, &recv) == abi::kSuccess);
        // Posts the receive before or after the message is sent.
        if (k == 0) rank.barrier();
        void* send = nullptr;
        REQUIRE(client->isend(pair.send, data, 0, &send) == abi::kSuccess);
        int size = -1;
        for (void* const request : {send, recv}) {
          spin_until("a message", [&] {
            int done = 0;
            REQUIRE(client->test(request, &done, &size) == abi::kSuccess);
            return done != 0;
          });
        }
        CHECK_EQ(static_cast<std::size_t>(size), nbytes);
        CHECK(std::equal(data.begin(), data.end(), memory.begin()));
      }
    }
    close_comm_pair(*client, pair);
  });
}

// Short messages that are batched are sent even if no send is tested.
TEST(nccl_net_conformance, short_messages_arrive_although_no_send_is_tested) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(12);
    const CommPair pair = open_comm_pair(*client, rank);
    std::vector<std::byte> memory(500, std::byte(rank.number() == 0 ? 7 : 0));
    std::vector<void*> requests(5);
    for (std::size_t k = 0; k < requests.size(); ++k) {
      const auto part = std::span(memory).subspan(k * 100, 100);
      const int result = rank.number() == 0
                             ? client->isend(pair.send, part, 0, &requests[k])
                             : client->irecv(pair.recv, part, 0, &requests[k]);
      REQUIRE(result == abi::kSuccess && requests[k] != nullptr);
    }
    // The sender only waits until the receiver has everything.
    if (rank.number() == 0) rank.barrier();
    for (void* const request : requests) {
      spin_until("a message", [&] {
        int done = 0;
        REQUIRE(client->test(request, &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
    }
    if (rank.number() == 1) rank.barrier();
    CHECK(memory == std::vector<std::byte>(500, std::byte{7}));
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_conformance, gpu_memory_is_refused) {
  run_ranks(kLoopback, [](TestRank& rank) {
    const auto client = start_client(8);
    const CommPair pair = open_comm_pair(*client, rank);
    std::byte memory[8];
    void* mhandle = memory;
    CHECK_EQ(client->reg_mr(pair.send, memory, 8, 2, &mhandle), abi::kInvalidArgument);
    void* request = memory;
    CHECK_EQ(client->iflush(pair.recv, &request), abi::kInternalError);
    CHECK(request == nullptr);
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_conformance, one_listener_serves_several_senders) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
    const HandleBytes theirs = rank.exchange(handle);
    std::vector<CommPair> pairs;
    // Each message names its sender, because accept() may return them in any order.
    for (int k = 0; k < 3; ++k) {
      HandleBytes copy = theirs;
      CommPair pair;
      spin_until("connect and accept", [&] {
        if (pair.send == nullptr) {
          REQUIRE(client->connect(0, copy, &pair.send) == abi::kSuccess);
        }
        if (pair.recv == nullptr) {
          REQUIRE(client->accept(listen_comm, &pair.recv) == abi::kSuccess);
        }
        return pair.send != nullptr && pair.recv != nullptr;
      });
      pairs.push_back(pair);
      rank.barrier();
    }
    run_traffic(*client, rank, pairs, 20);
    CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
    run_traffic(*client, rank, pairs, 20);
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

// Neither side waits for the other, so many calls return null.
TEST(nccl_net_conformance, connect_and_accept_in_any_order) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    std::mt19937_64 random(static_cast<unsigned>(7 + rank.number()));
    std::vector<CommPair> pairs;
    for (int k = 0; k < 10; ++k) {
      HandleBytes handle{};
      void* listen_comm = nullptr;
      REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
      handle = rank.exchange(handle);
      CommPair pair;
      spin_until("connect and accept", [&] {
        const auto calls = random() % 8;
        if (pair.send == nullptr && calls < 2) {
          REQUIRE(client->connect(0, handle, &pair.send) == abi::kSuccess);
        }
        if (pair.recv == nullptr && calls == (k % 2 == 0 ? 2u : 1u)) {
          REQUIRE(client->accept(listen_comm, &pair.recv) == abi::kSuccess);
        }
        return pair.send != nullptr && pair.recv != nullptr;
      });
      CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
      pairs.push_back(pair);
    }
    run_traffic(*client, rank, pairs, 10);
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

// The housekeeper accepts the sender.
TEST(nccl_net_conformance, connect_succeeds_before_accept_is_called) {
  run_ranks(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    HandleBytes handle{};
    void* comm = nullptr;
    if (rank.number() == 1) {
      void* listen_comm = nullptr;
      REQUIRE(client->listen(0, handle, &listen_comm) == abi::kSuccess);
      rank.send_bytes(handle.data(), handle.size());
      rank.barrier();
      spin_until("accept", [&] {
        REQUIRE(client->accept(listen_comm, &comm) == abi::kSuccess);
        return comm != nullptr;
      });
      CHECK_EQ(client->close_listen(listen_comm), abi::kSuccess);
      rank.barrier();
      CHECK_EQ(client->close_recv(comm), abi::kSuccess);
      return;
    }
    rank.receive_bytes(handle.data(), handle.size());
    spin_until("connect", [&] {
      REQUIRE(client->connect(0, handle, &comm) == abi::kSuccess);
      return comm != nullptr;
    });
    rank.barrier();
    rank.barrier();
    CHECK_EQ(client->close_send(comm), abi::kSuccess);
  });
}

TEST(nccl_net_conformance, a_full_request_table_returns_null_and_recovers) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    const auto client = start_client(11);
    const CommPair pair = open_comm_pair(*client, rank);
    constexpr int kMany = 40;
    std::vector<std::byte> memory(kMany * 100'000);
    const auto part = [&](int k) {
      return std::span(memory).subspan(static_cast<std::size_t>(k) * 100'000, 100'000);
    };
    std::vector<void*> requests;
    for (int k = 0; k < kMany; ++k) {
      void* request = abi::kOptionalCompletion;
      REQUIRE(client->irecv(pair.recv, part(k), 0, &request) == abi::kSuccess);
      if (request == nullptr) break;
      requests.push_back(request);
    }
    CHECK_EQ(requests.size(), 32u);
    rank.barrier();
    const std::vector<std::byte> data(100'000, std::byte{42});
    std::vector<void*> sent;
    const auto send = [&] {
      void* request = nullptr;
      REQUIRE(client->isend(pair.send, data, 0, &request) == abi::kSuccess);
      if (request != nullptr) sent.push_back(request);
      return request != nullptr;
    };
    while (sent.size() < requests.size()) REQUIRE(send());
    CHECK(!send());
    const auto finish = [&](std::vector<void*>& list) {
      spin_until("the oldest request", [&] {
        int done = 0;
        REQUIRE(client->test(list.front(), &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
      list.erase(list.begin());
    };
    // Tests the oldest request of each direction, as NCCL does.
    finish(sent);
    finish(requests);
    void* again = nullptr;
    REQUIRE(client->irecv(pair.recv, part(39), 0, &again) == abi::kSuccess);
    REQUIRE(again != nullptr && send());
    requests.push_back(again);
    while (!sent.empty()) {
      finish(sent);
      finish(requests);
    }
    CHECK(memory[31 * 100'000] == std::byte{42});
    rank.barrier();
    close_comm_pair(*client, pair);
  });
}

TEST(nccl_net_conformance, loads_unloads_and_starts_again) {
  run_ranks_in_both_modes(kLoopback, [](TestRank& rank) {
    for (const int version : {11, 6, 12}) play_all(rank, version, 2, 10);
  });
}

TEST(nccl_net_conformance, a_late_receive_gets_what_was_sent_before_the_close) {
  for (const std::size_t nbytes : {10'000, 1'000'000}) {
    run_ranks_in_both_modes(kLoopback, [nbytes](TestRank& rank) {
      const auto client = start_client(10);
      const CommPair pair = open_comm_pair(*client, rank);
      std::vector<std::byte> data(nbytes, std::byte{7});
      for (int k = 0; k < 8; ++k) {
        void* request = nullptr;
        REQUIRE(client->isend(pair.send, data, 0, &request) == abi::kSuccess);
        spin_until("send", [&] {
          int done = 0;
          REQUIRE(client->test(request, &done, nullptr) == abi::kSuccess);
          return done != 0;
        });
      }
      CHECK_EQ(client->close_send(pair.send), abi::kSuccess);
      rank.barrier();
      for (int k = 0; k < 8; ++k) {
        std::vector<std::byte> into(nbytes);
        void* request = nullptr;
        REQUIRE(client->irecv(pair.recv, into, 0, &request) == abi::kSuccess);
        spin_until("receive", [&] {
          int done = 0;
          REQUIRE(client->test(request, &done, nullptr) == abi::kSuccess);
          return done != 0;
        });
        CHECK(into == data);
      }
      void* request = nullptr;
      spin_until("the end of the connection", [&] {
        const int result = client->irecv(pair.recv, data, 0, &request);
        if (result == abi::kSuccess) {
          int done = 0;
          return request != nullptr &&
                 client->test(request, &done, nullptr) == abi::kRemoteError;
        }
        return result == abi::kRemoteError;
      });
      CHECK_EQ(client->close_recv(pair.recv), abi::kSuccess);
    });
  }
}

}  // namespace
}  // namespace bluecomm::test
