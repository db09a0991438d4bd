// Placement of chunks, turns of messages, and how streams join a link and end.
#include "stream/link.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <thread>
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
  explicit Pair(std::size_t streams, bool checksum = false)
      : sender(kHead.size(), 4096, std::make_shared<SegmentPool>(), checksum) {
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

  Link sender;
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

// Moves a link as its owner does: when the kernel has news, or when it is busy.
void move(Link& link, const std::function<bool(std::size_t)>& reads) {
  for (std::size_t i = 0; i < link.streams().size(); ++i) {
    Stream& stream = link.streams()[i];
    pollfd news{stream.fd(), POLLIN | POLLOUT, 0};
    poll(&news, 1, 0);
    stream.readable = (news.revents & POLLIN) != 0 && reads(i);
    stream.writable |= (news.revents & POLLOUT) != 0;
  }
  if (link.busy()) link.progress();
}

TEST(stream_link, what_was_left_to_a_faster_stream_that_stands_still_is_taken_back) {
  Pair pair(2);
  Transfer transfer(pair, 64 * kMiB);
  const auto all = [](std::size_t) { return true; };
  const auto left = [&] { return pair.sender.streams()[0].passed_over; };
  const auto deadline = Clock::now() + test::kDeadline;
  for (int turn = 0; !left() && Clock::now() < deadline; ++turn) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    move(pair.sender, all);
    move(pair.receiver, [&](std::size_t i) { return i == 1 || turn % 40 == 0; });
  }
  REQUIRE(left() && pair.sender.bytes_started() < 64 * kMiB);
  while (pair.sender.bytes_started() < 64 * kMiB && Clock::now() < deadline) {
    move(pair.sender, all);
    move(pair.receiver, [](std::size_t i) { return i == 0; });
  }
  CHECK_EQ(pair.sender.bytes_started(), 64 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  CHECK(transfer.into == transfer.data);
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

// Socket pairs keep what they are given, so a checksum that is wrong was made so.
TEST(stream_link, all_that_is_sent_goes_with_checksums_if_wanted) {
  Pair plain(2);
  Pair pair(2, true);
  for (Pair* one : {&plain, &pair}) {
    Transfer large(*one, 2 * kMiB);
    REQUIRE(one->turn_until([&] { return large.done(); }));
    CHECK(large.into == large.data);
    Transfer eager(*one, 1000);
    REQUIRE(one->turn_until([&] { return eager.readable() == 1000; }));
  }
  const auto sum = [](Pair& one) {
    std::uint64_t bytes = 0;
    for (const auto& stream : one.sender.stats().streams) bytes += stream.bytes_sent;
    return bytes;
  };
  // One for each of the 32 chunks and two messages.
  CHECK_EQ(sum(pair) - sum(plain), 34 * sizeof(Frame));
  // A grant that is lost on the way would hold up its message for ever.
  const std::uint64_t before = pair.sender.queued();
  pair.sender.send_heartbeat();
  CHECK_EQ(pair.sender.queued() - before, 2 * sizeof(Frame));
  const std::uint64_t heard = pair.receiver.bytes_received();
  REQUIRE(pair.turn_until(
      [&] { return pair.receiver.bytes_received() == heard + 2 * sizeof(Frame); }));
  CHECK(!pair.receiver.ended().has_value());
}

TEST(stream_link, a_wrong_checksum_ends_the_link_before_the_message_is_there) {
  Pair pair(1);
  Frame checksum{.kind = FrameKind::kChecksum};
  Frame message{.kind = FrameKind::kMessage};
  message.length = static_cast<std::uint32_t>(kHead.size());
  OutBuffer& out = pair.sender.streams()[0].frames();
  out.append(checksum);
  out.append(message);
  out.append(kHead);
  REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
  CHECK(pair.receiver.ended()->find("does not match its checksum") !=
        std::string::npos);
  CHECK(pair.arrived.empty());
}

TEST(stream_link, one_turn_moves_no_more_than_its_budget) {
  Pair pair(16);
  Transfer transfer(pair, 16 * kMiB);
  pair.stalled = SIZE_MAX;
  for (Stream& stream : pair.sender.streams()) stream.readable = stream.writable = true;
  const auto before = pair.sender.bytes_started();
  pair.sender.progress();
  // A MiB, and the round that it ends in: another communicator's turn comes then.
  CHECK(pair.sender.bytes_started() - before <= kMiB + 16 * kSmallChunk);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
}

TEST(stream_link, a_message_that_is_expected_waits_for_no_grant) {
  Pair pair(2);
  const auto data = pattern(kMiB);
  std::vector<std::byte> into(2 * kMiB);
  pair.receiver.expect(0, into);
  pair.turn();
  pair.turn();
  SentMessage message;
  pair.sender.send(message, kHead, data);
  CHECK_EQ(pair.sender.bytes_started(), 0u);
  for (Stream& stream : pair.sender.streams()) stream.writable = true;
  pair.sender.progress();
  CHECK(pair.sender.bytes_started() > 0);
  // Chunks come before the message that they are of.
  pair.stalled = 0;
  REQUIRE(pair.turn_until(
      [&] { return pair.receiver.stats().streams[1].chunks_received > 2; }));
  CHECK(pair.arrived.empty());
  pair.stalled = SIZE_MAX;
  REQUIRE(pair.turn_until([&] { return message.released() == kMiB; }));
  REQUIRE(pair.turn_until([&] {
    return !pair.arrived.empty() && pair.arrived[0]->readable().size() == kMiB;
  }));
  CHECK(pair.arrived[0]->accepted());
  CHECK(std::equal(data.begin(), data.end(), into.begin()));
  CHECK(pair.arrived[0]->readable().data() == into.data());
}

TEST(stream_link, messages_cross_the_word_that_they_are_expected) {
  Pair pair(1);
  const auto data = pattern(kMiB);
  std::vector<std::byte> into(kMiB);
  SentMessage message;
  pair.sender.send(message, kHead, data);
  pair.receiver.expect(0, into);
  REQUIRE(pair.turn_until([&] { return message.released() == kMiB; }));
  REQUIRE(pair.turn_until([&] {
    return !pair.arrived.empty() && pair.arrived[0]->readable().size() == kMiB;
  }));
  CHECK(into == data);
}

TEST(stream_link, expected_memory_may_turn_out_too_small_or_not_be_needed) {
  Pair pair(2);
  std::vector<std::byte> small(1000);
  pair.receiver.expect(0, small);
  pair.receiver.expect(1, small);
  pair.turn();
  pair.turn();
  Transfer large(pair, kMiB);  // accepts it in memory of its own
  REQUIRE(pair.turn_until([&] { return large.done(); }));
  CHECK(large.into == large.data);
  const auto data = pattern(500);
  SentMessage eager;
  pair.sender.send(eager, kHead, data);
  REQUIRE(
      pair.turn_until([&] { return !pair.arrived.empty() && pair.arrived.back(); }));
  CHECK(!pair.arrived.back()->accepted());
  pair.arrived.back()->accept(small);
  CHECK(std::ranges::equal(pair.arrived.back()->readable(), data));
}

TEST(stream_link, early_chunks_that_nobody_expects_are_refused) {
  const auto hear = [](std::size_t offset, std::size_t nbytes, std::uint64_t message) {
    Pair pair(2);
    std::vector<std::byte> into(kSmallChunk);
    pair.receiver.expect(0, into);
    Frame frame{.kind = FrameKind::kChunk};
    frame.length = static_cast<std::uint32_t>(nbytes);
    frame.message = message;
    frame.offset = offset;
    OutBuffer& out = pair.sender.streams()[1].frames();
    out.append(frame);
    out.append(std::vector<std::byte>(nbytes));
    out.append(frame);
    REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
    return *pair.receiver.ended();
  };
  const std::string not_asked = "a chunk that was not asked for";
  CHECK(hear(0, kSmallChunk + 1, 0).find(not_asked) != std::string::npos);
  CHECK(hear(kSmallChunk, 64, 0).find(not_asked) != std::string::npos);
  // The same a second time.
  CHECK(hear(64, 64, 0).find(not_asked) != std::string::npos);
  CHECK(hear(0, 64, 1).find("a chunk of an unknown message") != std::string::npos);
}

// What ends a link where 128 bytes of a message come before its head, which then says
// that it has `nbytes`; kSmallChunk of them are expected.
std::string ended_by_early_chunk(std::size_t nbytes) {
  Pair pair(1);
  std::vector<std::byte> into(kSmallChunk);
  pair.receiver.expect(0, into);
  OutBuffer& out = pair.sender.streams()[0].frames();
  Frame chunk{.kind = FrameKind::kChunk};
  chunk.length = 128;
  out.append(chunk);
  out.append(std::vector<std::byte>(128));
  Frame message{.kind = FrameKind::kMessage};
  message.length = static_cast<std::uint32_t>(kHead.size());
  message.offset = nbytes;
  out.append(message);
  out.append(kHead);
  REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
  return *pair.receiver.ended();
}

// Nobody looks after the memory of such a message once its head is here.
TEST(stream_link, a_message_longer_than_expected_has_no_early_chunks) {
  CHECK(ended_by_early_chunk(2 * kSmallChunk).find("a chunk beyond its message") !=
        std::string::npos);
}

TEST(stream_link, a_message_shorter_than_its_early_chunks_is_refused) {
  CHECK(ended_by_early_chunk(64).find("a chunk beyond its message") !=
        std::string::npos);
}

TEST(stream_link, what_a_receiver_expects_is_checked) {
  const auto hear = [](std::vector<std::uint64_t> messages) {
    Pair pair(1);
    for (const std::uint64_t number : messages) {
      Frame frame{.kind = FrameKind::kExpected};
      frame.message = number;
      pair.receiver.streams()[0].frames().append(frame);
    }
    REQUIRE(pair.turn_until([&] { return pair.sender.ended().has_value(); }));
    return *pair.sender.ended();
  };
  CHECK(hear({kMaxExpected}).find("too early a receive") != std::string::npos);
  CHECK(hear({3, 3}).find("receives out of order") != std::string::npos);
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
  pair.sender.send_heartbeat();
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
