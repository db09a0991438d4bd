// How links are established, and how they get more streams.
#include <dirent.h>
#include <sys/socket.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "stream/socket.h"
#include "tests/check.h"
#include "tests/transport/tcp_support.h"

namespace bluecomm::test {
namespace {

std::size_t count_fds() {
  DIR* const folder = opendir("/proc/self/fd");
  std::size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// An address that never answers: a listener with a full queue, so that the kernel drops
// new connections.
class BlackHole {
 public:
  BlackHole() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const stream::Address address("127.0.0.1", 0);
    REQUIRE(bind(listener_.get(), address.data(), address.size()) == 0);
    REQUIRE(listen(listener_.get(), 0) == 0);
    for (UniqueFd& fd : fillers_) {
      stream::start_connecting(stream::local_address(listener_.get()), fd);
    }
  }
  std::string offer() const { return stream::local_address(listener_.get()).text(); }

 private:
  UniqueFd listener_;
  std::array<UniqueFd, 4> fillers_;
};

// A port that stays bound, but on which nobody listens.
class ClosedPort {
 public:
  ClosedPort() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const stream::Address address("127.0.0.1", 0);
    REQUIRE(bind(fd_.get(), address.data(), address.size()) == 0);
  }
  std::string offer() const { return stream::local_address(fd_.get()).text(); }

 private:
  UniqueFd fd_;
};

TEST(tcp_links, one_link_remains_when_both_ranks_dial) {
  for (int round = 0; round < 30; ++round) {
    Findings findings;
    Ranks ranks(tcp_scheme([&](TcpOptions& options) { options.streams = 3; }), 2,
                findings);
    const std::size_t before = count_fds();
    const Sending from_0 = ranks[0].send(1, 1, 300'000);
    for (int i = 0; i < round % 7; ++i) ranks[i % 2].poll();
    const Sending from_1 = ranks[1].send(0, 2, 300'000);
    if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
    if (Reader* reader = ranks.await(0, 2)) ranks.read_all(*reader);
    ranks.spin("three streams", [&] { return count_fds() == before + 6; });
    ranks.drive_for(5ms);
    CHECK_EQ(count_fds(), before + 6);
    CHECK_EQ(findings.size(), 0u);
  }
}

// Returns the streams of the link from rank 0 to rank 1, as rank 0 counts them.
std::vector<StreamCounters> streams_of(Ranks& ranks) {
  return ranks[0].channel(1).stats().streams;
}

// Sends megabytes from rank 0 to rank 1 until `done` returns true.
void send_until(Ranks& ranks, const std::function<bool()>& done) {
  std::uint64_t tag = 1;
  while (!done() && tag < 200 && ranks.findings().empty()) {
    const Sending sending = ranks[0].send(1, tag, 4 << 20);
    if (Reader* reader = ranks.await(1, tag++)) ranks.read_all(*reader);
  }
  CHECK(done());
}

TEST(tcp_links, a_link_within_a_machine_stays_at_one_stream) {
  Findings findings;
  Ranks ranks(tcp_scheme([](TcpOptions& options) { options.streams = 0; }), 2,
              findings);
  int sent = 0;
  send_until(ranks, [&] { return ++sent > 16; });
  CHECK_EQ(streams_of(ranks).size(), 1u);
  CHECK_EQ(findings.size(), 0u);
}

TEST(tcp_links, limits_hold_from_the_next_turn_on) {
  const auto limits = std::make_shared<stream::SendingLimits>();
  Findings findings;
  Ranks ranks(tcp_scheme([&](TcpOptions& options) {
                options.streams = 3;
                options.limits = limits;
              }),
              2, findings);
  int sent = 0;
  send_until(ranks, [&] { return ++sent > 4 && streams_of(ranks).size() == 3; });
  std::uint64_t tag = 1000;
  // Sends 4 MiB, and returns the chunks that each stream has carried of them.
  const auto chunks_of_one = [&] {
    std::vector<std::uint64_t> chunks;
    for (const StreamCounters& one : streams_of(ranks))
      chunks.push_back(one.chunks_sent);
    const Sending sending = ranks[0].send(1, ++tag, 4 << 20);
    if (Reader* reader = ranks.await(1, tag)) ranks.read_all(*reader);
    std::size_t i = 0;
    for (const StreamCounters& one : streams_of(ranks)) {
      chunks[i] = one.chunks_sent - chunks[i];
      ++i;
    }
    return chunks;
  };
  limits->streams = 1;
  limits->chunk = 32 << 10;
  CHECK_EQ(chunks_of_one(), (std::vector<std::uint64_t>{128, 0, 0}));
  limits->streams = 2;
  limits->chunk = 128 << 10;
  const auto two = chunks_of_one();
  CHECK_EQ(two[0] + two[1], 32u);
  CHECK_EQ(two[2], 0u);
  CHECK_EQ(findings.size(), 0u);
}

// Caps the rate of each TCP connection of this process, so that the network is slow
// and not the ranks.
void slow_down() {
  const std::uint64_t bytes_per_s = 20'000'000;
  for (int fd = 3; fd < 100; ++fd) {
    static_cast<void>(setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &bytes_per_s,
                                 sizeof bytes_per_s));
  }
}

// A peer that is reached at an address other than one's own is on another machine.
void check_growth(int dialer, std::size_t limit = stream::kMaxStreams) {
  const auto limits = std::make_shared<stream::SendingLimits>();
  limits->streams = limit;
  Findings findings;
  Ranks ranks(tcp_scheme([&](TcpOptions& options) {
                options.streams = 0;
                options.limits = limits;
                options.addresses = {"127.0.0." + std::to_string(options.rank + 2)};
              }),
              2, findings);
  if (dialer == 1) {
    const Sending first = ranks[1].send(0, 1000, 10);
    if (Reader* reader = ranks.await(0, 1000)) ranks.read_all(*reader);
  }
  send_until(ranks, [&] {
    slow_down();
    return streams_of(ranks).size() >= std::min<std::size_t>(limit, 4);
  });
  CHECK(streams_of(ranks).size() <= limit);
  CHECK_EQ(findings.size(), 0u);
}

TEST(tcp_links, a_link_to_another_machine_grows_under_load) { check_growth(0); }

TEST(tcp_links, the_end_that_did_not_dial_asks_for_growth) { check_growth(1); }

TEST(tcp_links, a_link_grows_up_to_a_limit_that_was_set_before) {
  for (const int dialer : {0, 1}) check_growth(dialer, 2);
}

TEST(tcp_links, streams_are_spread_over_the_addresses_that_answer) {
  const BlackHole hole;
  const ClosedPort closed;
  TcpOptions options = tcp_options(1);
  options.addresses = {"127.0.0.2", "127.0.0.3"};
  TcpTransport other(options);
  Scheme scheme = tcp_alone(
      [](TcpOptions& options) {
        options.streams = 7;
        options.handshake_timeout = 1000ms;
      },
      other.offer() + "," + closed.offer() + "," + hole.offer());
  scheme.make_world = [make = scheme.make_world, &other](int) {
    World world = make(1);
    other.channel(0, world.transports[0]->offer());
    return world;
  };
  LoneRank world(scheme);
  struct : Receiver {
    void on_message(int, std::unique_ptr<Incoming>) override {}
    void on_lost(int, Status) override {}
    void on_goodbye(int) override {}
  } receiver;
  const Sending sending = world.ranks[0].send(1, 1, 10);
  world.ranks.spin("seven streams", [&] {
    other.poll(receiver);
    return streams_of(world.ranks).size() == 7;
  });
  std::map<std::string, int> count;
  for (const StreamCounters& stream : streams_of(world.ranks)) {
    ++count[stream.peer.substr(0, stream.peer.rfind(':'))];
  }
  CHECK_EQ(count.size(), 2u);
  CHECK(count["127.0.0.2"] >= 2 && count["127.0.0.3"] >= 2);
}

TEST(tcp_links, unreachable_addresses_are_passed_over) {
  const BlackHole hole;
  const ClosedPort closed;
  TcpTransport other(tcp_options(1));
  Scheme scheme = tcp_alone(
      [](TcpOptions& options) {
        options.streams = 2;
        // Waiting for one of these addresses would fail the test.
        options.connect_timeout = options.handshake_timeout = 10 * kDeadline;
      },
      hole.offer() + "," + closed.offer() + "," + other.offer());
  scheme.make_world = [make = scheme.make_world, &other](int) {
    World world = make(1);
    other.channel(0, world.transports[0]->offer());
    return world;
  };
  LoneRank world(scheme);
  struct : Receiver {
    void on_message(int, std::unique_ptr<Incoming>) override { ++messages; }
    void on_lost(int, Status) override {}
    void on_goodbye(int) override {}
    int messages = 0;
  } receiver;
  const Sending sending = world.ranks[0].send(1, 1, 10);
  world.ranks.spin("message", [&] {
    other.poll(receiver);
    return receiver.messages == 1;
  });
}

TEST(tcp_links, an_address_that_never_answers_is_given_up) {
  const BlackHole hole;
  LoneRank world(tcp_alone([](TcpOptions& options) { options.connect_timeout = 400ms; },
                           hole.offer()));
  const Sending sending = world.ranks[0].send(1, 1, 10);
  const std::string text = world.await_loss();
  expect_part(text, "cannot connect to rank 1 within ");
  expect_part(text, " s: " + hole.offer() + " (no answer)");
}

TEST(tcp_links, a_port_that_stays_closed_is_given_up_sooner) {
  const ClosedPort closed;
  const std::string offer = closed.offer();
  LoneRank world(
      tcp_alone([](TcpOptions& options) { options.refused_timeout = 200ms; }, offer));
  const Sending sending = world.ranks[0].send(1, 1, 100'000);
  expect_part(world.await_loss(), "s: " + offer + " (Connection refused)");
  CHECK_EQ(sending.message->released(), 0u);
  const Sending later = world.ranks[0].send(1, 2, 10);
  CHECK_EQ(later.message->released(), 0u);
}

}  // namespace
}  // namespace bluecomm::test
