// What NCCL does with a plugin, played by two processes: the sequence of calls,
// threads, lifetimes.
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

void play_all(const Actor& actor, int version, int channels, int messages) {
  const auto player = start_player(version);
  const auto open = open_channels(*player, actor, channels);
  run_traffic(*player, actor, open, messages);
  for (const Channel& one : open) close_channel(*player, one);
  CHECK_EQ(player->finalize(), abi::kSuccess);
}

TEST(net_conformance, every_version_moves_messages_of_all_sizes_both_ways) {
  for (int version = 6; version <= 12; ++version) {
    perform_both(kLoopback, [&](Actor& actor) { play_all(actor, version, 2, 60); });
  }
}

TEST(net_conformance, several_streams_and_checksums) {
  const auto both =
      with({{"BLUECOMM_NET_STREAMS", "4"}, {"BLUECOMM_NET_CHECKSUM", "1"}});
  perform_both(both, [&](Actor& actor) { play_all(actor, 11, 2, 100); });
}

TEST(net_conformance, cards_are_described) {
  perform(kLoopback, [](Actor&) {
    for (int version = 6; version <= 12; ++version) {
      const auto player = start_player(version);
      CHECK_EQ(std::string(player->name()), std::string("BlueComm"));
      int count = 0;
      player->devices(&count);
      CHECK_EQ(count, 1);
      Card card;
      CHECK_EQ(player->properties(0, &card), abi::kSuccess);
      CHECK_EQ(card.name, std::string("lo"));
      CHECK_EQ(card.pci_path, std::string());
      CHECK_EQ(card.ptr_support, abi::kHostMemory);
      CHECK_EQ(card.max_recvs, 1);
      CHECK(card.speed > 0);
      CHECK_EQ(card.max_p2p_bytes, version >= 9 ? std::size_t{1} << 40 : 0);
      CHECK_EQ(player->properties(1, &card), abi::kInvalidArgument);
    }
  });
}

TEST(net_conformance, sixty_four_communicators_at_once) {
  perform_both(kLoopback, [](Actor& actor) { play_all(actor, 12, 64, 6); });
}

// Two communicators: each with a thread that does everything.
TEST(net_conformance, two_threads_with_communicators_of_their_own) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    const auto first = open_channels(*player, actor, 2);
    const auto second = open_channels(*player, actor, 2);
    std::atomic<int> failures = 0;
    const auto run = [&](const std::vector<Channel>& channels) {
      try {
        run_traffic(*player, actor, channels, 40);
        for (const Channel& one : channels) close_channel(*player, one);
      } catch (...) {
        ++failures;
      }
    };
    std::thread other([&] { run(second); });
    // Memory is registered while others move data.
    std::byte memory[64];
    for (int i = 0; i < 1000; ++i) {
      void* mhandle = nullptr;
      CHECK_EQ(player->reg_mr(first[0].send, memory, sizeof memory, 1, &mhandle),
               abi::kSuccess);
      CHECK_EQ(player->dereg_mr(first[0].send, mhandle), abi::kSuccess);
    }
    run(first);
    other.join();
    CHECK_EQ(failures.load(), 0);
  });
}

// What one communicator has queued is no affair of another's: its short messages get
// through although nobody receives, or tests, the long ones.
TEST(net_conformance, a_busy_communicator_holds_up_no_other) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    const auto channels = open_channels(*player, actor, 2);
    const Channel& busy = channels[0];
    const std::vector<std::byte> data(32 << 20, std::byte{5});
    std::vector<void*> queued;
    for (int k = 0; k < 32; ++k) {
      queued.push_back(nullptr);
      REQUIRE(player->isend(busy.send, data, 0, &queued.back()) == abi::kSuccess);
      REQUIRE(queued.back() != nullptr);
    }
    run_traffic(*player, actor, std::span(channels).last(1), 100);
    // Not even the first of them can be through.
    int done = 0;
    CHECK_EQ(player->test(queued.front(), &done, nullptr), abi::kSuccess);
    CHECK_EQ(done, 0);
    actor.meet();
    for (const Channel& one : channels) close_channel(*player, one);
  });
}

// A receive that the sender knows of beforehand may turn out longer than the message,
// or the message may be short after all.
TEST(net_conformance, long_messages_and_short_ones_in_turn) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(12);
    const Channel channel = open_channel(*player, actor);
    std::vector<std::byte> memory(1 << 20);
    for (const std::size_t nbytes : {300'000, 1 << 20, 0, 100, 17'000, 1, 1 << 20}) {
      const std::vector<std::byte> data(nbytes, std::byte(nbytes % 251));
      for (int k = 0; k < 2; ++k) {
        void* recv = abi::kOptionalCompletion;
        REQUIRE(player->irecv(channel.recv, memory, 0, &recv) == abi::kSuccess);
        // Whether the word of it comes before the message or after it.
        if (k == 0) actor.meet();
        void* send = nullptr;
        REQUIRE(player->isend(channel.send, data, 0, &send) == abi::kSuccess);
        int size = -1;
        for (void* const request : {send, recv}) {
          spin_until("a message", [&] {
            int done = 0;
            REQUIRE(player->test(request, &done, &size) == abi::kSuccess);
            return done != 0;
          });
        }
        CHECK_EQ(static_cast<std::size_t>(size), nbytes);
        CHECK(std::equal(data.begin(), data.end(), memory.begin()));
      }
    }
    close_channel(*player, channel);
  });
}

// Short ones that follow another go together, when one is tested; or without.
TEST(net_conformance, short_messages_arrive_though_nobody_tests_the_sends) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(12);
    const Channel channel = open_channel(*player, actor);
    std::vector<std::byte> memory(500, std::byte(actor.number() == 0 ? 7 : 0));
    std::vector<void*> requests(5);
    for (std::size_t k = 0; k < requests.size(); ++k) {
      const auto part = std::span(memory).subspan(k * 100, 100);
      const int result = actor.number() == 0
                             ? player->isend(channel.send, part, 0, &requests[k])
                             : player->irecv(channel.recv, part, 0, &requests[k]);
      REQUIRE(result == abi::kSuccess && requests[k] != nullptr);
    }
    // The sender does nothing but wait until the receiver has all.
    if (actor.number() == 0) actor.meet();
    for (void* const request : requests) {
      spin_until("a message", [&] {
        int done = 0;
        REQUIRE(player->test(request, &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
    }
    if (actor.number() == 1) actor.meet();
    CHECK(memory == std::vector<std::byte>(500, std::byte{7}));
    close_channel(*player, channel);
  });
}

TEST(net_conformance, gpu_memory_is_refused) {
  perform(kLoopback, [](Actor& actor) {
    const auto player = start_player(8);
    const Channel channel = open_channel(*player, actor);
    std::byte memory[8];
    void* mhandle = memory;
    CHECK_EQ(player->reg_mr(channel.send, memory, 8, 2, &mhandle),
             abi::kInvalidArgument);
    void* request = memory;
    CHECK_EQ(player->iflush(channel.recv, &request), abi::kInternalError);
    CHECK(request == nullptr);
    close_channel(*player, channel);
  });
}

TEST(net_conformance, one_listener_serves_several_senders) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    HandleBytes handle{};
    void* listen_comm = nullptr;
    REQUIRE(player->listen(0, handle, &listen_comm) == abi::kSuccess);
    const HandleBytes theirs = actor.exchange(handle);
    std::vector<Channel> channels;
    // Each message says which sender it is of: accept() may give them in any order.
    for (int k = 0; k < 3; ++k) {
      HandleBytes copy = theirs;
      Channel channel;
      spin_until("connect and accept", [&] {
        if (channel.send == nullptr) {
          REQUIRE(player->connect(0, copy, &channel.send) == abi::kSuccess);
        }
        if (channel.recv == nullptr) {
          REQUIRE(player->accept(listen_comm, &channel.recv) == abi::kSuccess);
        }
        return channel.send != nullptr && channel.recv != nullptr;
      });
      channels.push_back(channel);
      actor.meet();
    }
    run_traffic(*player, actor, channels, 20);
    CHECK_EQ(player->close_listen(listen_comm), abi::kSuccess);
    run_traffic(*player, actor, channels, 20);
    for (const Channel& one : channels) close_channel(*player, one);
  });
}

// Each side is called when it is, and often in vain.
TEST(net_conformance, connect_and_accept_in_any_order) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    std::mt19937_64 random(static_cast<unsigned>(7 + actor.number()));
    std::vector<Channel> channels;
    for (int k = 0; k < 10; ++k) {
      HandleBytes handle{};
      void* listen_comm = nullptr;
      REQUIRE(player->listen(0, handle, &listen_comm) == abi::kSuccess);
      handle = actor.exchange(handle);
      Channel channel;
      spin_until("connect and accept", [&] {
        const auto calls = random() % 8;
        if (channel.send == nullptr && calls < 2) {
          REQUIRE(player->connect(0, handle, &channel.send) == abi::kSuccess);
        }
        if (channel.recv == nullptr && calls == (k % 2 == 0 ? 2u : 1u)) {
          REQUIRE(player->accept(listen_comm, &channel.recv) == abi::kSuccess);
        }
        return channel.send != nullptr && channel.recv != nullptr;
      });
      CHECK_EQ(player->close_listen(listen_comm), abi::kSuccess);
      channels.push_back(channel);
    }
    run_traffic(*player, actor, channels, 10);
    for (const Channel& one : channels) close_channel(*player, one);
  });
}

// The thread that keeps lets the sender in.
TEST(net_conformance, connect_is_through_though_nobody_accepts_yet) {
  perform(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    HandleBytes handle{};
    void* comm = nullptr;
    if (actor.number() == 1) {
      void* listen_comm = nullptr;
      REQUIRE(player->listen(0, handle, &listen_comm) == abi::kSuccess);
      actor.tell(handle.data(), handle.size());
      actor.meet();
      spin_until("accept", [&] {
        REQUIRE(player->accept(listen_comm, &comm) == abi::kSuccess);
        return comm != nullptr;
      });
      CHECK_EQ(player->close_listen(listen_comm), abi::kSuccess);
      actor.meet();
      CHECK_EQ(player->close_recv(comm), abi::kSuccess);
      return;
    }
    actor.hear(handle.data(), handle.size());
    spin_until("connect", [&] {
      REQUIRE(player->connect(0, handle, &comm) == abi::kSuccess);
      return comm != nullptr;
    });
    actor.meet();
    actor.meet();
    CHECK_EQ(player->close_send(comm), abi::kSuccess);
  });
}

TEST(net_conformance, a_full_table_says_busy_and_recovers) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(11);
    const Channel channel = open_channel(*player, actor);
    constexpr int kMany = 40;
    std::vector<std::byte> memory(kMany * 100'000);
    const auto part = [&](int k) {
      return std::span(memory).subspan(static_cast<std::size_t>(k) * 100'000, 100'000);
    };
    std::vector<void*> requests;
    for (int k = 0; k < kMany; ++k) {
      void* request = abi::kOptionalCompletion;
      REQUIRE(player->irecv(channel.recv, part(k), 0, &request) == abi::kSuccess);
      if (request == nullptr) break;
      requests.push_back(request);
    }
    CHECK_EQ(requests.size(), 32u);
    actor.meet();
    const std::vector<std::byte> data(100'000, std::byte{42});
    std::vector<void*> sent;
    const auto send = [&] {
      void* request = nullptr;
      REQUIRE(player->isend(channel.send, data, 0, &request) == abi::kSuccess);
      if (request != nullptr) sent.push_back(request);
      return request != nullptr;
    };
    while (sent.size() < requests.size()) REQUIRE(send());
    CHECK(!send());
    const auto finish = [&](std::vector<void*>& list) {
      spin_until("the oldest request", [&] {
        int done = 0;
        REQUIRE(player->test(list.front(), &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
      list.erase(list.begin());
    };
    // As NCCL tests: the oldest of each.
    finish(sent);
    finish(requests);
    void* again = nullptr;
    REQUIRE(player->irecv(channel.recv, part(39), 0, &again) == abi::kSuccess);
    REQUIRE(again != nullptr && send());
    requests.push_back(again);
    while (!sent.empty()) {
      finish(sent);
      finish(requests);
    }
    CHECK(memory[31 * 100'000] == std::byte{42});
    actor.meet();
    close_channel(*player, channel);
  });
}

TEST(net_conformance, loads_unloads_and_starts_again) {
  perform_both(kLoopback, [](Actor& actor) {
    for (const int version : {11, 6, 12}) play_all(actor, version, 2, 10);
  });
}

TEST(net_conformance, a_late_receive_gets_what_was_sent_before_the_close) {
  perform_both(kLoopback, [](Actor& actor) {
    const auto player = start_player(10);
    const Channel channel = open_channel(*player, actor);
    constexpr std::size_t kNbytes = 10'000;
    std::vector<std::byte> data(kNbytes, std::byte{7});
    for (int k = 0; k < 8; ++k) {
      void* request = nullptr;
      REQUIRE(player->isend(channel.send, data, 0, &request) == abi::kSuccess);
      spin_until("send", [&] {
        int done = 0;
        REQUIRE(player->test(request, &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
    }
    CHECK_EQ(player->close_send(channel.send), abi::kSuccess);
    actor.meet();
    for (int k = 0; k < 8; ++k) {
      std::vector<std::byte> into(kNbytes);
      void* request = nullptr;
      REQUIRE(player->irecv(channel.recv, into, 0, &request) == abi::kSuccess);
      spin_until("receive", [&] {
        int done = 0;
        REQUIRE(player->test(request, &done, nullptr) == abi::kSuccess);
        return done != 0;
      });
      CHECK(into == data);
    }
    void* request = nullptr;
    spin_until("the end is noticed", [&] {
      const int result = player->irecv(channel.recv, data, 0, &request);
      if (result == abi::kSuccess) {
        int done = 0;
        return request != nullptr &&
               player->test(request, &done, nullptr) == abi::kRemoteError;
      }
      return result == abi::kRemoteError;
    });
    CHECK_EQ(player->close_recv(channel.recv), abi::kSuccess);
  });
}

}  // namespace
}  // namespace bluecomm::test
