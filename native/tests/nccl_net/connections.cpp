#include "tests/nccl_net/connections.h"

#include <cstring>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

constexpr int kSuccess = nccl_net::abi::kSuccess;
// NCCL posts more than it gets, and says for some receives that it need not know.
constexpr std::size_t kSpare = 4096;

}  // namespace

std::unique_ptr<Player> start_player(int version) {
  auto player = Player::load(version);
  REQUIRE(player->init() == kSuccess);
  int count = 0;
  REQUIRE(player->devices(&count) == kSuccess && count > 0);
  Card card;
  REQUIRE(player->properties(0, &card) == kSuccess);
  return player;
}

std::vector<Channel> open_channels(Player& player, const Actor& actor, int count) {
  struct Opening {
    HandleBytes handle;
    void* listen = nullptr;
    Channel channel;
  };
  std::vector<Opening> all(static_cast<std::size_t>(count));
  for (Opening& one : all) {
    REQUIRE(player.listen(0, one.handle, &one.listen) == kSuccess);
    REQUIRE(one.listen != nullptr);
    one.handle = actor.exchange(one.handle);
  }
  spin_until("connect and accept", [&] {
    bool done = true;
    for (Opening& one : all) {
      Channel& channel = one.channel;
      if (channel.send == nullptr) {
        REQUIRE(player.connect(0, one.handle, &channel.send) == kSuccess);
      }
      if (channel.recv == nullptr) {
        REQUIRE(player.accept(one.listen, &channel.recv) == kSuccess);
        // As NCCL does, at once.
        if (channel.recv != nullptr)
          CHECK_EQ(player.close_listen(one.listen), kSuccess);
      }
      done &= channel.send != nullptr && channel.recv != nullptr;
    }
    return done;
  });
  std::vector<Channel> channels;
  for (const Opening& one : all) channels.push_back(one.channel);
  return channels;
}

Channel open_channel(Player& player, const Actor& actor, int) {
  return open_channels(player, actor, 1).front();
}

void close_channel(Player& player, const Channel& channel) {
  CHECK_EQ(player.close_send(channel.send), kSuccess);
  CHECK_EQ(player.close_recv(channel.recv), kSuccess);
}

std::size_t Script::next_size() {
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

void Script::fill(std::uint64_t k, std::span<std::byte> bytes) const {
  std::uint64_t state = seed_ * 0x9e3779b97f4a7c15 + k;
  for (std::size_t at = 0; at < bytes.size(); at += sizeof state) {
    state = state * 6364136223846793005 + 1442695040888963407;
    const std::uint64_t word = state ^ (state >> 29);
    std::memcpy(bytes.data() + at, &word, std::min(sizeof word, bytes.size() - at));
  }
}

bool Script::matches(std::uint64_t k, std::span<const std::byte> bytes) const {
  std::vector<std::byte> expected(bytes.size());
  fill(k, expected);
  return bytes.empty() || std::memcmp(expected.data(), bytes.data(), bytes.size()) == 0;
}

SendFlow::SendFlow(Player& player, void* comm, std::uint64_t seed, int count, int depth)
    : player_(player),
      comm_(comm),
      script_(seed),
      left_(count),
      depth_(static_cast<std::size_t>(depth)) {}

bool SendFlow::turn() {
  while (left_ > 0 && items_.size() < depth_) {
    if (items_.empty() || items_.back().request != nullptr) {
      Item item{std::vector<std::byte>(script_.next_size()), nullptr};
      script_.fill(posted_, item.data);
      items_.push_back(std::move(item));
    }
    Item& item = items_.back();
    REQUIRE(player_.isend(comm_, item.data, 3, &item.request) == kSuccess);
    if (item.request == nullptr) break;
    ++posted_;
    --left_;
  }
  if (!items_.empty() && items_.front().request != nullptr) {
    int done = 0;
    int size = -1;
    REQUIRE(player_.test(items_.front().request, &done, &size) == kSuccess);
    if (done != 0) {
      CHECK_EQ(static_cast<std::size_t>(size), items_.front().data.size());
      items_.pop_front();
    }
  }
  return left_ == 0 && items_.empty();
}

RecvFlow::RecvFlow(Player& player, void* comm, std::uint64_t seed, int count, int depth)
    : player_(player),
      comm_(comm),
      script_(seed),
      left_(count),
      depth_(static_cast<std::size_t>(depth)) {}

bool RecvFlow::turn() {
  while (left_ > 0 && items_.size() < depth_) {
    if (items_.empty() || items_.back().request != nullptr) {
      const std::size_t nbytes = script_.next_size();
      items_.push_back({std::vector<std::byte>(nbytes + kSpare), nbytes, nullptr});
    }
    Item& item = items_.back();
    const bool optional = player_.version() >= 9 && posted_ % 2 == 1;
    item.request = optional ? nccl_net::abi::kOptionalCompletion : nullptr;
    REQUIRE(player_.irecv(comm_, item.memory, 3, &item.request) == kSuccess);
    if (item.request == nullptr) break;
    ++posted_;
    --left_;
  }
  if (!items_.empty() && items_.front().request != nullptr) {
    Item& item = items_.front();
    int done = 0;
    int size = -1;
    const bool ask = taken_ % 3 != 0;  // NCCL does not always want the size
    REQUIRE(player_.test(item.request, &done, ask ? &size : nullptr) == kSuccess);
    if (done != 0) {
      if (ask) CHECK_EQ(static_cast<std::size_t>(size), item.nbytes);
      CHECK(script_.matches(taken_, std::span(item.memory).first(item.nbytes)));
      ++taken_;
      items_.pop_front();
    }
  }
  return left_ == 0 && items_.empty();
}

void run_traffic(Player& player, const Actor& actor, std::span<const Channel> channels,
                 int count) {
  constexpr int kDepth = 8;
  std::deque<SendFlow> sends;
  std::deque<RecvFlow> recvs;
  std::uint64_t seed = 100;
  for (const Channel& channel : channels) {
    const auto mine = seed + static_cast<std::uint64_t>(actor.number());
    const auto theirs = seed + static_cast<std::uint64_t>(1 - actor.number());
    sends.emplace_back(player, channel.send, mine, count, kDepth);
    recvs.emplace_back(player, channel.recv, theirs, count, kDepth);
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
