// How links end other than by a goodbye.
#include <net/if.h>
#include <netinet/in.h>
#include <sched.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/transport/tcp_support.h"

namespace bluecomm::test {
namespace {

TEST(tcp_losses, a_stream_cut_in_mid_chunk_loses_the_channel) {
  LoneRank world(tcp_alone());
  HandMadePeer peer(world.offer(), 3);
  world.ranks.spin("handshake", [&] { return peer.greet(); });
  peer.announce(0, 5, 1 << 20);
  Reader* reader = world.ranks.await(0, 5);
  REQUIRE(reader != nullptr);
  reader->accept(Reader::Mode::kViews);
  const stream::Frame chunk{.kind = stream::FrameKind::kChunk, .length = 65536};
  peer.send(chunk, 65536, 1);
  stream::Frame second = chunk;
  second.offset = 65536;
  peer.send(second, 1000, 2);
  world.ranks.drive("the first chunk",
                    [&] { return reader->message().readable().size() == 65536; });
  peer.close(2);
  const std::string& text = world.await_loss();
  expect_part(text, "lost the connection to rank 1: stream 3 of 3 to 127.0.0.1:");
  expect_part(text, "closed by the peer without a goodbye");
  // The bytes that arrived before the loss are valid, and no others ever arrive.
  CHECK_EQ(reader->message().readable().size(), 65536u);
}

TEST(tcp_losses, a_peer_that_breaks_the_protocol_loses_the_channel) {
  const stream::Frame chunk{.kind = stream::FrameKind::kChunk, .length = 64};
  const stream::Frame grant{
      .kind = stream::FrameKind::kGrant, .message = 9, .offset = 1};
  const stream::Frame open{.kind = stream::FrameKind::kOpen};
  const stream::Frame early{
      .kind = stream::FrameKind::kMessage, .length = 256, .message = 1};
  const stream::Frame headless{.kind = stream::FrameKind::kMessage, .length = 255};
  const stream::Frame longer{
      .kind = stream::FrameKind::kMessage, .length = 257, .offset = 2};
  const stream::Frame many{.kind = stream::FrameKind::kGrow, .offset = 17};
  const stream::Frame long_credit{.kind = stream::FrameKind::kCredit, .offset = 1};
  const stream::Frame strange{.kind = static_cast<stream::FrameKind>(99)};
  const std::vector<std::pair<stream::Frame, std::string>> cases{
      {chunk, "a chunk of an unknown message"},
      {grant, "room for a message never sent"},
      {open, "a link opened twice"},
      {early, "a message out of order"},
      {long_credit, "more credit than was used"},
      {headless, "a message without a head"},
      {longer, "a message of another length"},
      {many, "too many streams"},
      {strange, "an unknown kind of frame"}};
  for (const auto& [frame, defect] : cases) {
    LoneRank world(tcp_alone());
    HandMadePeer peer(world.offer(), 1);
    world.ranks.spin("handshake", [&] { return peer.greet(); });
    peer.send(frame, frame.length);
    expect_part(world.await_loss(), "the peer broke the protocol: " + defect);
  }
}

TEST(tcp_losses, a_chunk_is_accepted_once_and_within_the_grant) {
  for (const std::uint64_t offset : {std::uint64_t{0}, std::uint64_t{1} << 21}) {
    LoneRank world(tcp_alone());
    HandMadePeer peer(world.offer(), 1);
    world.ranks.spin("handshake", [&] { return peer.greet(); });
    peer.announce(0, 5, 1 << 20);
    Reader* reader = world.ranks.await(0, 5);
    REQUIRE(reader != nullptr);
    reader->accept(Reader::Mode::kViews);
    stream::Frame chunk{.kind = stream::FrameKind::kChunk, .length = 128};
    peer.send(chunk, 128);
    chunk.offset = offset;
    peer.send(chunk, 128);
    expect_part(world.await_loss(), "a chunk that was not asked for");
    CHECK_EQ(reader->message().readable().size(), 128u);
  }
}

// Runs `body` in a child process, which then waits to be killed.
pid_t fork_rank(const std::function<void()>& body) {
  const pid_t child = fork();
  if (child != 0) return child;
  body();
  while (true) pause();
}

TEST(tcp_losses, a_killed_peer_is_lost_by_the_end_of_its_connection) {
  LoneRank world(tcp_alone());
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
  const std::string& text = world.await_loss();
  expect_part(text, "lost the connection to rank 1: 127.0.0.1:");
  CHECK(text.find("nothing was acknowledged") == text.npos);
  waitpid(child, nullptr, 0);
  CHECK(!reader->done());
}

TEST(tcp_losses, a_forked_child_keeps_no_connection_alive) {
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

TEST(tcp_losses, a_stopped_peer_is_not_lost) {
  Findings findings;
  const Scheme scheme =
      tcp_scheme([](TcpOptions& options) { options.silence_timeout = 1000ms; });
  Ranks ranks(scheme, 2, findings);
  const Sending first = ranks[0].send(1, 1, 10);
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  const Sending sending = ranks[0].send(1, 2, 100'000'000);
  Reader* reader = ranks.await(1, 2);
  REQUIRE(reader != nullptr);
  reader->accept(Reader::Mode::kInto);
  ranks.spin("bytes", [&] { return reader->message().readable().size() > 0; });
  // Rank 1 is no longer polled: its window closes, but its kernel answers probes.
  const auto end = std::chrono::steady_clock::now() + 3s;
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

// Loses the only network interface, in a network namespace of its own, while data is
// on its way. Returns what went wrong, or nothing.
std::string lose_the_network() {
  const bool alone =
      unshare(CLONE_NEWNET) == 0 || unshare(CLONE_NEWUSER | CLONE_NEWNET) == 0;
  if (!alone || !set_loopback(true)) {
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

TEST(tcp_losses, a_silent_network_is_noticed) {
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
