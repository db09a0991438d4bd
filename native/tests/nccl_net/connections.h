#pragma once

#include <cstdint>
#include <deque>
#include <random>
#include <span>
#include <vector>

#include "tests/nccl_net/plugin_client.h"
#include "tests/nccl_net/test_ranks.h"

namespace bluecomm::test {

// Both ends of what a rank has with the other: it sends on one, receives on the other.
struct CommPair {
  void* send = nullptr;
  void* recv = nullptr;
};

// Does what NCCL does for one pair in both directions: listen, ship the handle,
// connect and accept in turn until both are there, closeListen.
CommPair open_comm_pair(PluginClient& client, const TestRank& rank, int device = 0);
// Of several, all in progress at once.
std::vector<CommPair> open_comm_pairs(PluginClient& client, const TestRank& rank,
                                      int count);
void close_comm_pair(PluginClient& client, const CommPair& pair);

// Loads a version, and starts it: init, devices, properties.
std::unique_ptr<PluginClient> start_client(int version);

// Sizes and bytes of a sequence of messages, the same in both processes.
class Script {
 public:
  explicit Script(std::uint64_t seed) : seed_(seed), random_(seed) {}

  // Mostly around the borders of chunks and of what is sent ahead.
  std::size_t next_size();
  // Message number `k` of so many bytes.
  void fill(std::uint64_t k, std::span<std::byte> bytes) const;
  bool matches(std::uint64_t k, std::span<const std::byte> bytes) const;

 private:
  std::uint64_t seed_;
  std::mt19937_64 random_;
};

// A stream of messages in one direction, as NCCL's progress thread moves it: up to
// `depth` in flight, only the oldest is tested.
class SendFlow {
 public:
  SendFlow(PluginClient& client, void* comm, std::uint64_t seed, int count, int depth);
  // Posts and tests. True when all are done.
  bool turn();

 private:
  struct Item {
    std::vector<std::byte> data;
    void* request;
  };
  PluginClient& client_;
  void* comm_;
  Script script_;
  int left_;
  std::size_t depth_;
  std::uint64_t posted_ = 0;
  std::deque<Item> items_;
};

class RecvFlow {
 public:
  RecvFlow(PluginClient& client, void* comm, std::uint64_t seed, int count, int depth);
  // Posts, tests and compares every byte. True when all are done.
  bool turn();

 private:
  struct Item {
    std::vector<std::byte> memory;
    std::size_t nbytes;
    void* request;
  };
  PluginClient& client_;
  void* comm_;
  Script script_;
  int left_;
  std::size_t depth_;
  std::uint64_t posted_ = 0;
  std::uint64_t taken_ = 0;
  std::deque<Item> items_;
};

// `count` messages of random sizes each way over each pair, all at once.
void run_traffic(PluginClient& client, const TestRank& rank,
                 std::span<const CommPair> pairs, int count);

}  // namespace bluecomm::test
