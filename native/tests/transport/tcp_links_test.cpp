// How links come about, and how they end.
#include <dirent.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdio>
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

struct World1 {
  explicit World1(const Scheme& scheme) : ranks(scheme, 1, findings) {}
  ~World1() {
    for (const std::string& finding : findings) record_failure("links", 0, finding);
  }
  std::string offer() { return ranks[0].transport().offer(); }
  const std::string& await_loss() {
    ranks.drive("loss", [&] { return ranks[0].lost.contains(1); });
    return ranks[0].lost[1].text;
  }

  Findings findings;
  Ranks ranks;
};

bool contains(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return true;
  record_failure("text", 0, "'" + text + "' does not contain '" + std::string(part));
  return false;
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
  World1 world(scheme);
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
  World1 world(tcp_alone([](TcpOptions& options) { options.connect_timeout = 400ms; },
                         hole.offer()));
  const Sending sending = world.ranks[0].send(1, 1, 10);
  CHECK_EQ(world.await_loss(),
           "cannot connect to rank 1 within 0.4 s: " + hole.offer() + " (no answer)");
}

TEST(tcp_links, a_port_that_stays_closed_is_given_up_sooner) {
  const std::string offer = refusing_offer();
  World1 world(
      tcp_alone([](TcpOptions& options) { options.refused_timeout = 200ms; }, offer));
  const Sending sending = world.ranks[0].send(1, 1, 100'000);
  contains(world.await_loss(), "s: " + offer + " (Connection refused)");
  CHECK_EQ(sending.message->released(), 0u);
  const Sending later = world.ranks[0].send(1, 2, 10);
  CHECK_EQ(later.message->released(), 0u);
}

TEST(tcp_links, a_stream_cut_in_mid_chunk_loses_the_channel) {
  World1 world(tcp_alone());
  HandMadePeer peer(world.offer(), 3);
  world.ranks.spin("handshake", [&] { return peer.greet(); });
  peer.announce(0, 5, 1 << 20);
  Reader* reader = world.ranks.await(0, 5);
  REQUIRE(reader != nullptr);
  reader->accept(Reader::Mode::kViews);
  world.ranks.drive_for(5ms);
  const tcp::Frame chunk{.kind = tcp::FrameKind::kChunk, .length = 65536};
  peer.send(chunk, 65536, 1);
  tcp::Frame second = chunk;
  second.offset = 65536;
  peer.send(second, 1000, 2);
  world.ranks.drive_for(5ms);
  peer.close(2);
  const std::string& text = world.await_loss();
  contains(text, "lost the connection to rank 1: stream 3 of 3 to 127.0.0.1:");
  contains(text, "closed by the peer without a goodbye");
  // What came before is good, and that is all that ever comes.
  CHECK_EQ(reader->message().readable().size(), 65536u);
}

TEST(tcp_links, a_peer_that_breaks_the_protocol_loses_the_channel) {
  const tcp::Frame chunk{.kind = tcp::FrameKind::kChunk, .length = 64};
  const tcp::Frame grant{.kind = tcp::FrameKind::kGrant, .message = 9, .offset = 1};
  const tcp::Frame open{.kind = tcp::FrameKind::kOpen};
  const tcp::Frame early{.kind = tcp::FrameKind::kMessage, .length = 256, .message = 1};
  const tcp::Frame long_credit{.kind = tcp::FrameKind::kCredit, .offset = 1};
  const tcp::Frame strange{.kind = static_cast<tcp::FrameKind>(99)};
  const std::vector<std::pair<tcp::Frame, std::string>> cases{
      {chunk, "a chunk of an unknown message"},
      {grant, "room for a message never sent"},
      {open, "a link opened twice"},
      {early, "a message out of order"},
      {long_credit, "more credit than was used"},
      {strange, "an unknown kind of frame"}};
  for (const auto& [frame, defect] : cases) {
    World1 world(tcp_alone());
    HandMadePeer peer(world.offer(), 1);
    world.ranks.spin("handshake", [&] { return peer.greet(); });
    peer.send(frame, frame.length);
    contains(world.await_loss(), "the peer broke the protocol: " + defect);
  }
}

TEST(tcp_links, a_chunk_is_written_once_and_within_what_was_asked_for) {
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1} << 21}) {
    World1 world(tcp_alone());
    HandMadePeer peer(world.offer(), 1);
    world.ranks.spin("handshake", [&] { return peer.greet(); });
    peer.announce(0, 5, 1 << 20);
    Reader* reader = world.ranks.await(0, 5);
    REQUIRE(reader != nullptr);
    reader->accept(Reader::Mode::kViews);
    tcp::Frame chunk{.kind = tcp::FrameKind::kChunk, .length = 128};
    peer.send(chunk, 128);
    chunk.offset = offset;
    peer.send(chunk, 128);
    contains(world.await_loss(), "a chunk that was not asked for");
    CHECK_EQ(reader->message().readable().size(), 128u);
  }
}

// Runs `body` in a child process that ends when it is killed.
pid_t fork_rank(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  body();
  while (true) pause();
}

TEST(tcp_links, a_killed_peer_is_lost_at_once) {
  World1 world(tcp_alone());
  const std::string offer = world.offer();
  const pid_t child = fork_rank([&] {
    TcpTransport transport(tcp_options(1));
    const std::vector<std::byte> payload(10'000'000);
    const auto sending =
        transport.channel(0, offer).send(make_header(1, payload.size()), payload);
    struct : Receiver {
      void on_message(int, std::unique_ptr<Incoming>) override {}
      void on_lost(int, Status) override {}
      void on_goodbye(int) override {}
    } receiver;
    while (true) {
      transport.poll(receiver);
      usleep(1000);
    }
  });
  Reader* reader = world.ranks.await(0, 1);
  REQUIRE(reader != nullptr);
  reader->accept(Reader::Mode::kViews);
  world.ranks.spin("bytes", [&] { return reader->read(64, world.findings); });
  kill(child, SIGKILL);
  const auto start = std::chrono::steady_clock::now();
  contains(world.await_loss(), "lost the connection to rank 1: 127.0.0.1:");
  CHECK(std::chrono::steady_clock::now() - start < 1s);
  waitpid(child, nullptr, 0);
  CHECK(!reader->done());
}

TEST(tcp_links, a_forked_child_keeps_no_connection_alive) {
  Findings findings;
  Ranks ranks(tcp_scheme(), 2, findings);
  Sending sending = ranks[0].send(1, 1, 10);
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  int ready[2];
  REQUIRE(pipe(ready) == 0);
  const pid_t child = fork_rank([&] {
    ranks[0].transport().abandon_after_fork();
    ranks[1].transport().abandon_after_fork();
    static_cast<void>(!write(ready[1], "x", 1));
  });
  char byte = 0;
  CHECK_EQ(read(ready[0], &byte, 1), 1);
  // The child has not disturbed the link ...
  sending = ranks[0].send(1, 2, 100'000);
  if (Reader* reader = ranks.await(1, 2)) ranks.read_all(*reader);
  CHECK(ranks[0].lost.empty() && ranks[1].lost.empty());
  // ... and does not hold it open.
  ranks[0].free_transport();
  ranks.drive("loss", [&] { return ranks[1].lost.contains(0); });
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(ready[0]);
  close(ready[1]);
  CHECK_EQ(findings.size(), 0u);
}

TEST(tcp_links, a_stopped_peer_is_not_lost) {
  Findings findings;
  const Scheme scheme =
      tcp_scheme([](TcpOptions& options) { options.silence_timeout = 400ms; });
  Ranks ranks(scheme, 2, findings);
  const Sending first = ranks[0].send(1, 1, 10);
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  const Sending sending = ranks[0].send(1, 2, 100'000'000);
  Reader* reader = ranks.await(1, 2);
  REQUIRE(reader != nullptr);
  reader->accept(Reader::Mode::kInto);
  ranks.spin("bytes", [&] { return reader->message().readable().size() > 0; });
  // Rank 1 is not polled any more: its window closes, its kernel answers probes.
  const auto end = std::chrono::steady_clock::now() + 2s;
  while (std::chrono::steady_clock::now() < end) {
    ranks[0].poll();
    usleep(20'000);
  }
  CHECK(ranks[0].lost.empty());
  ranks.read_all(*reader);
  CHECK_EQ(findings.size(), 0u);
}

bool set_loopback(bool up) {
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM, 0));
  ifreq request{};
  request.ifr_name[0] = 'l';
  request.ifr_name[1] = 'o';
  if (up) request.ifr_flags = IFF_UP;
  return ioctl(fd.get(), SIOCSIFFLAGS, &request) == 0;
}

// In a network of its own, whose only link goes down while data is on its way. Returns
// what is wrong, or nothing.
std::string lose_the_network() {
  if (unshare(CLONE_NEWUSER | CLONE_NEWNET) != 0 || !set_loopback(true)) {
    return "skipped: this system lets no process make a network of its own";
  }
  Findings findings;
  Ranks ranks(tcp_scheme([](TcpOptions& options) { options.silence_timeout = 1000ms; }),
              2, findings);
  Sending sending = ranks[0].send(1, 1, 10);
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  set_loopback(false);
  sending = ranks[0].send(1, 2, 100'000);
  ranks.drive("loss", [&] { return ranks[0].lost.contains(1); });
  if (!findings.empty()) return findings.front();
  const std::string& text = ranks[0].lost[1].text;
  const bool right = text.find("nothing was acknowledged for 1.0 s") != text.npos;
  return right ? "" : text;
}

TEST(tcp_links, a_network_that_falls_silent_is_noticed) {
  int result[2];
  REQUIRE(pipe(result) == 0);
  const pid_t child = fork_rank([&] {
    const std::string text = lose_the_network() + "\n";
    static_cast<void>(!write(result[1], text.data(), text.size()));
  });
  std::string text;
  for (char byte = 0; read(result[0], &byte, 1) == 1 && byte != '\n';) text += byte;
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  close(result[0]);
  close(result[1]);
  if (text.starts_with("skipped")) {
    std::printf("%s\n", text.c_str());
  } else {
    CHECK_EQ(text, "");
  }
}

}  // namespace
}  // namespace bluecomm::test
