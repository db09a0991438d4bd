#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "tests/nccl_net/plugin_client.h"
#include "tests/nccl_net/test_ranks.h"

namespace bluecomm::test {

using Variables = std::map<std::string, std::string>;

// Environments with the longest timeout, so that an error has another cause, and with
// the shortest one.
inline const Variables kLongTimeout{{"NCCL_SOCKET_IFNAME", "=lo"},
                                    {"BLUECOMM_NET_TIMEOUT_S", "600"}};
inline const Variables kShortTimeout{{"NCCL_SOCKET_IFNAME", "=lo"},
                                     {"BLUECOMM_NET_TIMEOUT_S", "2"}};

// The send comm and the recv comm of a rank.
struct CommPair {
  void* send = nullptr;
  void* recv = nullptr;
};

// Connects two ranks in both directions as NCCL does: calls listen, exchanges the
// handles, calls connect and accept in turn until both succeed, and calls closeListen.
CommPair open_comm_pair(PluginClient& client, const TestRank& rank, int device = 0);
// Opens `count` pairs at the same time.
std::vector<CommPair> open_comm_pairs(PluginClient& client, const TestRank& rank,
                                      int count);
void close_comm_pair(PluginClient& client, const CommPair& pair);

// Loads one version of the interface and calls init, devices and properties.
std::unique_ptr<PluginClient> start_client(int version);

// Returns the bytes received on the only stream of the only recv comm.
std::uint64_t received_so_far(PluginClient& client);

// A sequence of messages with pseudo-random sizes and contents, the same in both
// processes.
class MessageSequence {
 public:
  explicit MessageSequence(std::uint64_t seed) : seed_(seed), random_(seed) {}

  // Mostly close to the size of a chunk or to the eager limit.
  std::size_t next_size();
  // Fills `bytes` with the contents of message `k`.
  void fill(std::uint64_t k, std::span<std::byte> bytes) const;
  bool matches(std::uint64_t k, std::span<const std::byte> bytes) const;

 private:
  std::uint64_t seed_;
  std::mt19937_64 random_;
};

// Sends a sequence of messages as NCCL's proxy thread does: up to `depth` are in
// flight, and only the oldest is tested.
class SendFlow {
 public:
  SendFlow(PluginClient& client, void* comm, std::uint64_t seed, int count, int depth);
  // Posts and tests. Returns whether all messages are sent.
  bool turn();

 private:
  struct Item {
    std::vector<std::byte> data;
    void* request;
  };
  PluginClient& client_;
  void* comm_;
  MessageSequence sequence_;
  int left_;
  std::size_t depth_;
  std::uint64_t posted_ = 0;
  std::deque<Item> items_;
};

// Receives and checks the messages of a SendFlow.
class RecvFlow {
 public:
  RecvFlow(PluginClient& client, void* comm, std::uint64_t seed, int count, int depth);
  // Posts, tests and compares every byte. Returns whether all messages are received.
  bool turn();

 private:
  struct Item {
    std::vector<std::byte> memory;
    std::size_t nbytes;
    void* request;
  };
  PluginClient& client_;
  void* comm_;
  MessageSequence sequence_;
  int left_;
  std::size_t depth_;
  std::uint64_t posted_ = 0;
  std::uint64_t taken_ = 0;
  std::deque<Item> items_;
};

// Exchanges `count` messages in each direction over each pair, all pairs at the same
// time.
void run_traffic(PluginClient& client, const TestRank& rank,
                 std::span<const CommPair> pairs, int count);

}  // namespace bluecomm::test
