// Messages that are sent before their receives are posted.
#include <signal.h>

#include <cstdint>
#include <deque>
#include <span>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

// Eight of them, with their heads, exceed the credit.
constexpr std::size_t kEighth = 4 << 20;
constexpr std::size_t kMany = 12;
// The heads count against the credit, so the eighth message waits for a receive.
constexpr std::size_t kInCredit = 7;

// Long messages, each with contents of its own.
struct ManyMessages {
  ManyMessages() : memory(kMany * kEighth) {}

  std::span<std::byte> at(std::size_t k) {
    return std::span(memory).subspan(k * kEighth, kEighth);
  }
  // Sends all messages, and waits for those that need no receive.
  void send(PluginClient& client, void* comm) {
    for (std::size_t k = 0; k < kMany; ++k) {
      sequence.fill(k, at(k));
      requests.push_back(nullptr);
      REQUIRE(client.isend(comm, at(k), 0, &requests.back()) == abi::kSuccess);
      REQUIRE(requests.back() != nullptr);
    }
    for (std::size_t k = 0; k < kInCredit; ++k) {
      CHECK_EQ(result(client, k), abi::kSuccess);
    }
  }
  // Posts the receive of the k-th message, and returns the result of irecv().
  int receive(PluginClient& client, void* comm, std::size_t k) {
    requests.push_back(nullptr);
    return client.irecv(comm, at(k), 0, &requests.back());
  }
  // Returns the result of the k-th request, once it is known.
  int result(PluginClient& client, std::size_t k) const {
    int result = abi::kSuccess;
    spin_until("a long message", [&] {
      int done = 0;
      result = client.test(requests[k], &done, nullptr);
      return result != abi::kSuccess || done != 0;
    });
    return result;
  }

  MessageSequence sequence{7};
  std::vector<std::byte> memory;
  std::vector<void*> requests;
};

TEST(nccl_net_late_receives, unreceived_messages_occupy_no_more_than_the_credit) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    const auto client = start_client(11);
    const CommPair pair = open_comm_pair(*client, rank);
    ManyMessages messages;
    if (rank.number() == 0) {
      messages.send(*client, pair.send);
      for (int i = 0; i < 1000; ++i) {
        int done = 0;
        REQUIRE(client->test(messages.requests[kInCredit], &done, nullptr) ==
                abi::kSuccess);
        CHECK_EQ(done, 0);
      }
      rank.barrier();
      for (std::size_t k = kInCredit; k < kMany; ++k) {
        CHECK_EQ(messages.result(*client, k), abi::kSuccess);
      }
    } else {
      rank.barrier();
      CHECK(received_so_far(*client) < 8 * kEighth);
      for (std::size_t k = 0; k < kMany; ++k) {
        REQUIRE(messages.receive(*client, pair.recv, k) == abi::kSuccess);
        REQUIRE(messages.requests.back() != nullptr);
      }
      for (std::size_t k = 0; k < kMany; ++k) {
        CHECK_EQ(messages.result(*client, k), abi::kSuccess);
        CHECK(messages.sequence.matches(k, messages.at(k)));
      }
    }
    rank.barrier();
    close_comm_pair(*client, pair);
  });
}

// In each phase, only one of the communicators posts receives.
TEST(nccl_net_late_receives, communicators_receive_late_and_out_of_phase) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    constexpr std::size_t kPairs = 3;
    constexpr int kMessages = 40;
    constexpr int kPhase = 30;
    const auto client = start_client(12);
    const auto pairs = open_comm_pairs(*client, rank, kPairs);
    std::deque<SendFlow> sends;
    std::deque<RecvFlow> recvs;
    for (std::size_t k = 0; k < kPairs; ++k) {
      const auto mine = 2 * k + static_cast<std::uint64_t>(rank.number());
      const auto theirs = 2 * k + static_cast<std::uint64_t>(1 - rank.number());
      sends.emplace_back(*client, pairs[k].send, mine, kMessages, 8);
      recvs.emplace_back(*client, pairs[k].recv, theirs, kMessages, 8);
    }
    std::size_t turn = 0;
    std::vector<bool> received(kPairs);
    spin_until("all messages", [&] {
      bool done = true;
      for (SendFlow& one : sends) done &= one.turn();
      const std::size_t receiving = turn++ / kPhase % kPairs;
      received[receiving] = recvs[receiving].turn();
      for (const bool one : received) done &= one;
      return done;
    });
    rank.barrier();
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

TEST(nccl_net_late_receives, messages_of_a_killed_sender_are_right_or_an_error) {
  run_ranks_in_both_modes(
      kLongTimeout,
      [](TestRank& rank) {
        const auto client = start_client(11);
        const CommPair pair = open_comm_pair(*client, rank);
        ManyMessages messages;
        if (rank.number() == 0) {
          messages.send(*client, pair.send);
          rank.report();
          rank.wait();
          return;
        }
        rank.wait();
        int result = abi::kSuccess;
        for (std::size_t k = 0; k <= kInCredit && result == abi::kSuccess; ++k) {
          result = messages.receive(*client, pair.recv, k);
          if (result == abi::kSuccess) result = messages.result(*client, k);
          if (result == abi::kSuccess) {
            CHECK(messages.sequence.matches(k, messages.at(k)));
          }
        }
        CHECK_EQ(result, abi::kRemoteError);
        close_comm_pair(*client, pair);
      },
      [](Controller& controller) {
        controller.wait_for_report(0);
        controller.kill(0);
        controller.release(1);
      });
}

TEST(nccl_net_late_receives, a_sender_without_credit_notices_a_killed_receiver) {
  run_ranks_in_both_modes(
      kLongTimeout,
      [](TestRank& rank) {
        const auto client = start_client(11);
        const CommPair pair = open_comm_pair(*client, rank);
        if (rank.number() == 1) {
          rank.barrier();
          rank.report();
          rank.wait();
          return;
        }
        ManyMessages messages;
        messages.send(*client, pair.send);
        rank.barrier();
        CHECK_EQ(messages.result(*client, kInCredit), abi::kRemoteError);
        close_comm_pair(*client, pair);
      },
      [](Controller& controller) {
        controller.wait_for_report(1);
        controller.kill(1);
      });
}

}  // namespace
}  // namespace bluecomm::test
