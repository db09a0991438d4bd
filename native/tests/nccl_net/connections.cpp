#include "tests/nccl_net/connections.h"

#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

constexpr int kSuccess = nccl_net::abi::kSuccess;
// NCCL passes this mark for receives whose completion it need not know.
constexpr std::size_t kSpare = 4096;

}  // namespace

std::unique_ptr<PluginClient> start_client(int version) {
  auto client = PluginClient::load(version);
  REQUIRE(client->init() == kSuccess);
  int count = 0;
  REQUIRE(client->devices(&count) == kSuccess && count > 0);
  DeviceProperties device_properties;
  REQUIRE(client->properties(0, &device_properties) == kSuccess);
  return client;
}

std::vector<CommPair> open_comm_pairs(PluginClient& client, const TestRank& rank,
                                      int count) {
  struct Opening {
    HandleBytes handle;
    void* listen = nullptr;
    CommPair pair;
  };
  std::vector<Opening> all(static_cast<std::size_t>(count));
  for (Opening& one : all) {
    REQUIRE(client.listen(0, one.handle, &one.listen) == kSuccess);
    REQUIRE(one.listen != nullptr);
    one.handle = rank.exchange(one.handle);
  }
  spin_until("connect and accept", [&] {
    bool done = true;
    for (Opening& one : all) {
      CommPair& pair = one.pair;
      if (pair.send == nullptr) {
        REQUIRE(client.connect(0, one.handle, &pair.send) == kSuccess);
      }
      if (pair.recv == nullptr) {
        REQUIRE(client.accept(one.listen, &pair.recv) == kSuccess);
        // NCCL retries immediately.
        if (pair.recv != nullptr) CHECK_EQ(client.close_listen(one.listen), kSuccess);
      }
      done &= pair.send != nullptr && pair.recv != nullptr;
    }
    return done;
  });
  std::vector<CommPair> pairs;
  for (const Opening& one : all) pairs.push_back(one.pair);
  return pairs;
}

CommPair open_comm_pair(PluginClient& client, const TestRank& rank, int) {
  return open_comm_pairs(client, rank, 1).front();
}

void close_comm_pair(PluginClient& client, const CommPair& pair) {
  CHECK_EQ(client.close_send(pair.send), kSuccess);
  CHECK_EQ(client.close_recv(pair.recv), kSuccess);
}

std::uint64_t received_so_far(PluginClient& client) {
  const std::string text = client.counters();
  const std::string key = "\"bytes_received\": ";
  const auto at = text.find(key, text.find("\"recv\""));
  REQUIRE(at != std::string::npos);
  return std::strtoull(text.c_str() + at + key.size(), nullptr, 10);
}

std::size_t MessageSequence::next_size() {
  constexpr std::size_t kBorders[] = {0,        1,         8,        32 << 10,
                                      64 << 10, 128 << 10, 256 << 10};
  const std::size_t kind = random_() % 10;
  if (kind < 7) {
    const std::size_t border = kBorders[kind];
    const std::size_t off = random_() % 3;
    return border + off > 0 ? border + off - (border > 0 ? 1 : 0) : 0;
  }
  return random_() % (kind == 9 ? 1 << 20 : 100'000);
}

void MessageSequence::fill(std::uint64_t k, std::span<std::byte> bytes) const {
  std::uint64_t state = seed_ * 0x9e3779b97f4a7c15 + k;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t word = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool MessageSequence::matches(std::uint64_t k, std::span<const std::byte> bytes) const {
  std::vector<std::byte> expected(bytes.size());
  fill(k, expected);
  return bytes.empty() || std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

SendFlow::SendFlow(PluginClient& client, void* comm, std::uint64_t seed, int count,
                   int depth)
    : client_(client),
      comm_(comm),
      sequence_(seed),
      left_(count),
      depth_(static_cast<std::size_t>(depth)) {}

bool SendFlow::turn() {
  while (left_ > 0 && items_.size() < depth_) {
    if (items_.empty() || items_.back().request != nullptr) {
      Item item{std::vector<std::byte>(sequence_.next_size()), nullptr};
      sequence_.fill(posted_, item.data);
      items_.push_back(std::move(item));
    }
    Item& item = items_.back();
    REQUIRE(client_.isend(comm_, item.data, 3, &item.request) == kSuccess);
    if (item.request == nullptr) break;
    ++posted_;
    --left_;
  }
  if (!items_.empty() && items_.front().request != nullptr) {
    int done = 0;
    int size = -1;
    REQUIRE(client_.test(items_.front().request, &done, &size) == kSuccess);
    if (done != 0) {
      CHECK_EQ(static_cast<std::size_t>(size), items_.front().data.size());
      items_.pop_front();
    }
  }
  return left_ == 0 && items_.empty();
}

RecvFlow::RecvFlow(PluginClient& client, void* comm, std::uint64_t seed, int count,
                   int depth)
    : client_(client),
      comm_(comm),
      sequence_(seed),
      left_(count),
      depth_(static_cast<std::size_t>(depth)) {}

bool RecvFlow::turn() {
  while (left_ > 0 && items_.size() < depth_) {
    if (items_.empty() || items_.back().request != nullptr) {
      const std::size_t nbytes = sequence_.next_size();
      items_.push_back({std::vector<std::byte>(nbytes + kSpare), nbytes, nullptr});
    }
    Item& item = items_.back();
    const bool optional = client_.version() >= 9 && posted_ % 2 == 1;
    item.request = optional ? nccl_net::abi::kOptionalCompletion : nullptr;
    REQUIRE(client_.irecv(comm_, item.memory, 3, &item.request) == kSuccess);
    if (item.request == nullptr) break;
    ++posted_;
    --left_;
  }
  if (!items_.empty() && items_.front().request != nullptr) {
    Item& item = items_.front();
    int done = 0;
    int size = -1;
    const bool ask = taken_ % 3 != 0;  // NCCL does not always ask for the size
    REQUIRE(client_.test(item.request, &done, ask ? &size : nullptr) == kSuccess);
    if (done != 0) {
      if (ask) CHECK_EQ(static_cast<std::size_t>(size), item.nbytes);
      CHECK(sequence_.matches(taken_, std::span(item.memory).first(item.nbytes)));
      ++taken_;
      items_.pop_front();
    }
  }
  return left_ == 0 && items_.empty();
}

void run_traffic(PluginClient& client, const TestRank& rank,
                 std::span<const CommPair> pairs, int count) {
  constexpr int kDepth = 8;
  std::deque<SendFlow> sends;
  std::deque<RecvFlow> recvs;
  std::uint64_t seed = 100;
  for (const CommPair& pair : pairs) {
    const auto mine = seed + static_cast<std::uint64_t>(rank.number());
    const auto theirs = seed + static_cast<std::uint64_t>(1 - rank.number());
    sends.emplace_back(client, pair.send, mine, count, kDepth);
    recvs.emplace_back(client, pair.recv, theirs, count, kDepth);
    seed += 2;
  }
  spin_until("traffic", [&] {
    bool done = true;
    for (SendFlow& one : sends) done &= one.turn();
    for (RecvFlow& one : recvs) done &= one.turn();
    return done;
  });
}

}  // namespace bluecomm::test
