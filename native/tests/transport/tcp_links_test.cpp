// How links come about.
#include <dirent.h>
#include <sys/socket.h>

#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/transport/tcp_support.h"
#include "transport/tcp/socket.h"

namespace bluecomm::test {
namespace {

std::size_t count_fds() {
  DIR* const folder = opendir("/proc/self/fd");
  std::size_t count = 0;
  while (readdir(folder) != nullptr) ++count;
  closedir(folder);
  return count;
}

// An address whose kernel drops what comes: a listener with a full queue.
class BlackHole {
 public:
  BlackHole() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const tcp::Address address("127.0.0.1", 0);
    REQUIRE(bind(listener_.get(), address.data(), address.size()) == 0);
    REQUIRE(listen(listener_.get(), 0) == 0);
    for (UniqueFd& fd : fillers_) {
      tcp::start_connecting(tcp::local_address(listener_.get()), fd);
    }
  }
  std::string offer() const { return tcp::local_address(listener_.get()).text(); }

 private:
  UniqueFd listener_;
  std::array<UniqueFd, 4> fillers_;
};

// An address where nobody listens.
std::string refusing_offer() {
  const UniqueFd fd = tcp::listen_on(tcp::Address("127.0.0.1", 0));
  return tcp::local_address(fd.get()).text();
}

TEST(tcp_links, one_group_of_streams_stays_when_both_dial) {
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
    ranks.drive_for(5ms);
    CHECK_EQ(count_fds(), before + 6);
    CHECK_EQ(findings.size(), 0u);
  }
}

TEST(tcp_links, unreachable_addresses_are_passed_over) {
  const BlackHole hole;
  Findings findings;
  TcpTransport other(tcp_options(1));
  Scheme scheme =
      tcp_alone([](TcpOptions& options) { options.streams = 2; },
                hole.offer() + "," + refusing_offer() + "," + other.offer());
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
  const auto start = std::chrono::steady_clock::now();
  const Sending sending = world.ranks[0].send(1, 1, 10);
  world.ranks.spin("message", [&] {
    other.poll(receiver);
    return receiver.messages == 1;
  });
  // Two steps of 100 ms, less the refused one; nowhere near a timeout.
  CHECK(std::chrono::steady_clock::now() - start < 2s);
}

TEST(tcp_links, a_black_hole_is_given_up) {
  const BlackHole hole;
  LoneRank world(tcp_alone([](TcpOptions& options) { options.connect_timeout = 400ms; },
                           hole.offer()));
  const Sending sending = world.ranks[0].send(1, 1, 10);
  CHECK_EQ(world.await_loss(),
           "cannot connect to rank 1 within 0.4 s: " + hole.offer() + " (no answer)");
}

TEST(tcp_links, a_port_that_stays_closed_is_given_up_sooner) {
  const std::string offer = refusing_offer();
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
