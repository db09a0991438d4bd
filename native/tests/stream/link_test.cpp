// Placement of chunks, turns of messages, and how streams join a link and end.
#include "stream/link.h"

#include <fcntl.h>
#include <sys/socket.h>

#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <vector>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

constexpr std::array<std::byte, 8> kHead{};
constexpr std::size_t kMiB = 1 << 20;

std::vector<std::byte> pattern(std::size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = std::byte(i * 7 + i / 997);
  return bytes;
}

// Two links over socket pairs, which take little: a stalled one is full at once.
class Pair {
 public:
  explicit Pair(std::size_t streams) {
    for (std::size_t i = 0; i < streams; ++i) join();
  }

  void join() {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    const int room = 128 << 10;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    sender.add(UniqueFd(pair[0]), false);
    receiver.add(UniqueFd(pair[1]), false);
  }

  // One turn of both; streams of the receiver in `stalled` are not read.
  void turn() {
    for (Stream& stream : sender.streams()) stream.readable = stream.writable = true;
    for (std::size_t i = 0; i < receiver.streams().size(); ++i) {
      receiver.streams()[i].readable = i != stalled;
      receiver.streams()[i].writable = true;
    }
    sender.progress();
    receiver.progress();
    while (auto message = receiver.take_arrived())
      arrived.push_back(std::move(message));
  }
  bool turn_until(const std::function<bool()>& done) {
    for (int i = 0; i < 10'000 && !done(); ++i) turn();
    return done();
  }

  Link sender{kHead.size(), 4096, std::make_shared<SegmentPool>()};
  Link receiver{kHead.size(), 4096, std::make_shared<SegmentPool>()};
  std::size_t stalled = SIZE_MAX;
  std::vector<std::unique_ptr<ReceivedMessage>> arrived;
};

// A message of a sender, and the memory it is received in.
struct Transfer {
  Transfer(Pair& pair, std::size_t nbytes) : data(pattern(nbytes)), into(nbytes) {
    const std::size_t before = pair.arrived.size();
    pair.sender.send(message, kHead, data);
    REQUIRE(pair.turn_until([&] { return pair.arrived.size() > before; }));
    received = std::move(pair.arrived.back());
    received->accept(into);
  }
  std::size_t readable() const { return received->readable().size(); }
  bool done() const { return readable() == into.size(); }

  std::vector<std::byte> data;
  std::vector<std::byte> into;
  SentMessage message;
  std::unique_ptr<ReceivedMessage> received;
};

TEST(stream_link, a_stalled_stream_holds_back_no_more_than_it_has_taken) {
  Pair pair(4);
  Transfer first(pair, 8 * kMiB);
  pair.stalled = 3;
  for (int i = 0; i < 1000; ++i) pair.turn();
  const LinkStats sent = pair.sender.stats();
  std::uint64_t moved = 0;
  for (const StreamStats& stream : pair.receiver.stats().streams) {
    moved += stream.bytes_received;
  }
  // All but what the stalled stream has in its buffer, and one chunk begun.
  CHECK(moved + (512 << 10) > 8 * kMiB);
  CHECK(sent.streams[3].bytes_sent < 512 << 10);
  CHECK(!first.done());
  // A later message gets through on the others.
  pair.stalled = SIZE_MAX;
  REQUIRE(pair.turn_until([&] { return first.done(); }));
  CHECK(first.into == first.data);
}

TEST(stream_link, every_stream_takes_chunks_and_counts_them) {
  Pair pair(4);
  Transfer transfer(pair, 8 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  CHECK(transfer.into == transfer.data);
  CHECK_EQ(transfer.message.released(), 8 * kMiB);
  const auto sent = pair.sender.stats().streams;
  const auto received = pair.receiver.stats().streams;
  std::uint64_t chunks = 0;
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(sent[i].bytes_sent > 8 * kMiB / 10);
    CHECK_EQ(sent[i].bytes_sent, received[i].bytes_received);
    CHECK_EQ(sent[i].chunks_sent, received[i].chunks_received);
    chunks += sent[i].chunks_sent;
  }
  CHECK_EQ(chunks, 8 * kMiB / kSmallChunk);
}

TEST(stream_link, a_stream_that_joins_in_mid_message_takes_its_part) {
  Pair pair(1);
  Transfer transfer(pair, 16 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.readable() > 4 * kMiB; }));
  pair.join();
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  CHECK(transfer.into == transfer.data);
  CHECK(pair.sender.stats().streams[1].chunks_sent > 10);
}

TEST(stream_link, chunks_go_to_the_streams_in_use) {
  Pair pair(3);
  pair.sender.use(1);
  Transfer transfer(pair, 4 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  const auto sent = pair.sender.stats().streams;
  CHECK_EQ(sent[1].bytes_sent + sent[2].bytes_sent, 0u);
  CHECK(!pair.sender.busy() || pair.sender.streams()[0].readable);
}

TEST(stream_link, short_messages_overtake_long_ones_and_the_oldest_leads) {
  Pair pair(1);
  Transfer oldest(pair, 32 * kMiB);
  Transfer second(pair, 32 * kMiB);
  Transfer third(pair, 32 * kMiB);
  Transfer quick(pair, kSegment);
  REQUIRE(pair.turn_until([&] { return quick.done(); }));
  CHECK(oldest.readable() < 16 * kMiB);
  CHECK(oldest.readable() > second.readable());
  REQUIRE(pair.turn_until([&] { return oldest.done(); }));
  // Half of the link for the oldest, the other half for the other two.
  CHECK(second.readable() > 12 * kMiB && second.readable() < 20 * kMiB);
  CHECK(third.readable() > 12 * kMiB && third.readable() < 20 * kMiB);
  REQUIRE(pair.turn_until([&] { return second.done() && third.done(); }));
  CHECK(second.into == second.data && third.into == third.data);
}

TEST(stream_link, a_goodbye_that_overtakes_chunks_waits_for_them) {
  Pair pair(2);
  Transfer transfer(pair, 2 * kMiB);
  pair.stalled = 1;
  pair.sender.say_goodbye();
  for (int i = 0; i < 1000; ++i) pair.turn();
  CHECK(!pair.receiver.peer_finished());
  CHECK(!pair.sender.goodbye_seen());
  pair.stalled = SIZE_MAX;
  REQUIRE(pair.turn_until([&] { return pair.sender.goodbye_seen(); }));
  CHECK(pair.receiver.peer_finished());
  CHECK(transfer.into == transfer.data);
}

TEST(stream_link, a_lost_stream_is_the_end_and_is_named) {
  Pair pair(3);
  Transfer transfer(pair, 64 * kMiB);
  for (int i = 0; i < 20; ++i) pair.turn();
  shutdown(pair.receiver.streams()[2].fd(), SHUT_RDWR);
  REQUIRE(pair.turn_until([&] { return pair.sender.ended().has_value(); }));
  CHECK(pair.sender.ended()->starts_with("stream 3 of 3 to "));
}

TEST(stream_link, what_is_queued_is_flushed_and_a_sign_of_life_is_nothing_else) {
  Pair pair(2);
  const std::uint64_t before = pair.sender.queued();
  CHECK_EQ(pair.sender.flushed(), before);
  pair.sender.say_alive();
  CHECK_EQ(pair.sender.queued(), before + sizeof(Frame));
  CHECK_EQ(pair.sender.flushed(), before);
  REQUIRE(pair.turn_until([&] { return pair.receiver.bytes_received() > 0; }));
  CHECK_EQ(pair.sender.flushed(), before + sizeof(Frame));
  CHECK_EQ(pair.receiver.bytes_received(), sizeof(Frame));
  CHECK(pair.arrived.empty());
  CHECK(!pair.receiver.ended().has_value());
  // An eager message is in the kernel's hands when its last byte is.
  SentMessage message;
  const auto data = pattern(1000);
  pair.sender.send(message, kHead, data);
  CHECK_EQ(message.released(), data.size());
  CHECK(pair.sender.flushed() < pair.sender.queued());
  REQUIRE(pair.turn_until([&] { return !pair.arrived.empty(); }));
  const std::uint64_t all = pair.sender.queued();
  CHECK_EQ(pair.sender.flushed(), all);
  // What the kernel has stays so when the link is over.
  pair.sender.end();
  CHECK_EQ(pair.sender.flushed(), all);
  CHECK_EQ(pair.sender.queued(), all);
}

TEST(stream_link, messages_and_control_on_other_streams_are_refused) {
  for (const FrameKind kind : {FrameKind::kGrant, FrameKind::kGoodbye}) {
    Pair pair(2);
    pair.sender.streams()[1].frames().append(Frame{.kind = kind});
    REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
    CHECK(pair.receiver.ended()->find("control on a stream for chunks") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace bluecomm::stream
