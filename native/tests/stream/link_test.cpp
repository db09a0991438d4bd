// How a link shares its streams among messages, and how streams join it and end.
#include "stream/link.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "tests/check.h"
#include "tests/stream/link_pair.h"

namespace bluecomm::stream {
namespace {

TEST(stream_link, the_eager_credit_limits_what_is_sent_unasked) {
  Link link(kHead.size(), {.eager_credit = 3000}, std::make_shared<SegmentPool>());
  std::array<SentMessage, 3> messages;
  const auto data = pattern(1000);
  for (SentMessage& one : messages) link.send(one, kHead, data);
  CHECK_EQ(messages[1].released(), data.size());
  CHECK_EQ(messages[2].released(), 0u);
}

TEST(stream_link, a_stalled_stream_holds_back_no_more_than_it_has_taken) {
  LinkPair pair(4);
  Transfer first(pair, 8 * kMiB);
  pair.stalled = 3;
  for (int i = 0; i < 1000; ++i) pair.turn();
  const LinkStats sent = pair.sender.stats();
  std::uint64_t moved = 0;
  for (const StreamStats& stream : pair.receiver.stats().streams) {
    moved += stream.bytes_received;
  }
  // All bytes moved, except those in the stalled stream's buffer and one chunk that was
  // begun.
  CHECK(moved + (512 << 10) > 8 * kMiB);
  CHECK(sent.streams[3].bytes_sent < 512 << 10);
  CHECK(!first.done());
  // Once the stream is read again, the message completes.
  pair.stalled = SIZE_MAX;
  REQUIRE(pair.turn_until([&] { return first.done(); }));
  CHECK(first.into == first.data);
}

TEST(stream_link, every_stream_takes_chunks_and_counts_them) {
  LinkPair pair(4);
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
  LinkPair pair(1);
  Transfer transfer(pair, 16 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.readable() > 4 * kMiB; }));
  pair.join();
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  CHECK(transfer.into == transfer.data);
  CHECK(pair.sender.stats().streams[1].chunks_sent > 10);
}

TEST(stream_link, chunks_go_to_the_streams_in_use) {
  LinkPair pair(3);
  pair.sender.use(1);
  Transfer transfer(pair, 4 * kMiB);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  const auto sent = pair.sender.stats().streams;
  CHECK_EQ(sent[1].bytes_sent + sent[2].bytes_sent, 0u);
  CHECK(!pair.sender.busy() || pair.sender.streams()[0].readable);
}

TEST(stream_link, chunks_have_the_size_that_was_set_last) {
  LinkPair pair(2);
  pair.sender.cut_chunks(16 << 10);
  Transfer first(pair, kMiB);
  REQUIRE(pair.turn_until([&] { return first.done(); }));
  const auto sent = pair.sender.stats().streams;
  CHECK_EQ(sent[0].chunks_sent + sent[1].chunks_sent, kMiB / (16 << 10));
  Transfer second(pair, 8 * kMiB);
  for (const std::size_t nbytes : {32 << 10, 256 << 10, 64 << 10, 0}) {
    pair.sender.cut_chunks(nbytes);
    const std::size_t before = second.readable();
    REQUIRE(
        pair.turn_until([&] { return second.readable() > before || second.done(); }));
  }
  REQUIRE(pair.turn_until([&] { return second.done(); }));
  CHECK(second.into == second.data);
}

// Drives a link as its owner does: on events of the kernel, or while it is busy.
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

TEST(stream_link, a_stream_takes_back_chunks_left_to_a_stalled_one) {
  LinkPair pair(2);
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
  LinkPair pair(1);
  Transfer oldest(pair, 32 * kMiB);
  Transfer second(pair, 32 * kMiB);
  Transfer third(pair, 32 * kMiB);
  Transfer quick(pair, kSegment);
  REQUIRE(pair.turn_until([&] { return quick.done(); }));
  CHECK(oldest.readable() < 16 * kMiB);
  CHECK(oldest.readable() > second.readable());
  REQUIRE(pair.turn_until([&] { return oldest.done(); }));
  // The oldest got half of the link, and the other two shared the other half.
  CHECK(second.readable() > 12 * kMiB && second.readable() < 20 * kMiB);
  CHECK(third.readable() > 12 * kMiB && third.readable() < 20 * kMiB);
  REQUIRE(pair.turn_until([&] { return second.done() && third.done(); }));
  CHECK(second.into == second.data && third.into == third.data);
}

TEST(stream_link, every_frame_has_a_checksum_if_enabled) {
  LinkPair plain(2);
  LinkPair pair(2, true);
  for (LinkPair* one : {&plain, &pair}) {
    Transfer large(*one, 2 * kMiB);
    REQUIRE(one->turn_until([&] { return large.done(); }));
    CHECK(large.into == large.data);
    Transfer eager(*one, 1000);
    REQUIRE(one->turn_until([&] { return eager.readable() == 1000; }));
  }
  const auto sum = [](LinkPair& one) {
    std::uint64_t bytes = 0;
    for (const auto& stream : one.sender.stats().streams) bytes += stream.bytes_sent;
    return bytes;
  };
  // One checksum for each of the 32 chunks and two messages.
  CHECK_EQ(sum(pair) - sum(plain), 34 * sizeof(Frame));
  // Control frames have one, too.
  const std::uint64_t before = pair.sender.queued();
  pair.sender.send_heartbeat();
  CHECK_EQ(pair.sender.queued() - before, 2 * sizeof(Frame));
  const std::uint64_t heard = pair.receiver.bytes_received();
  REQUIRE(pair.turn_until(
      [&] { return pair.receiver.bytes_received() == heard + 2 * sizeof(Frame); }));
  CHECK(!pair.receiver.ended().has_value());
}

TEST(stream_link, a_wrong_checksum_ends_the_link_before_the_message_arrives) {
  LinkPair pair(1);
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
  LinkPair pair(16);
  Transfer transfer(pair, 16 * kMiB);
  pair.stalled = SIZE_MAX;
  for (Stream& stream : pair.sender.streams()) stream.readable = stream.writable = true;
  const auto before = pair.sender.bytes_started();
  pair.sender.progress();
  // The budget of a MiB, plus the round over all streams in which it was reached.
  CHECK(pair.sender.bytes_started() - before <= kMiB + 16 * kSmallChunk);
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
}

TEST(stream_link, a_goodbye_that_overtakes_chunks_waits_for_them) {
  LinkPair pair(2);
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

TEST(stream_link, a_lost_stream_ends_the_link_and_is_named) {
  LinkPair pair(3);
  Transfer transfer(pair, 64 * kMiB);
  for (int i = 0; i < 20; ++i) pair.turn();
  shutdown(pair.receiver.streams()[2].fd(), SHUT_RDWR);
  REQUIRE(pair.turn_until([&] { return pair.sender.ended().has_value(); }));
  CHECK(pair.sender.ended()->starts_with("stream 3 of 3 to "));
}

TEST(stream_link, queued_frames_are_flushed_and_a_heartbeat_is_a_single_frame) {
  LinkPair pair(2);
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
  // An eager message is flushed when the kernel has its last byte.
  SentMessage message;
  const auto data = pattern(1000);
  pair.sender.send(message, kHead, data);
  CHECK_EQ(message.released(), data.size());
  CHECK(pair.sender.flushed() < pair.sender.queued());
  REQUIRE(pair.turn_until([&] { return !pair.arrived.empty(); }));
  const std::uint64_t all = pair.sender.queued();
  CHECK_EQ(pair.sender.flushed(), all);
  // The counters stay valid after the link has ended.
  pair.sender.end();
  CHECK_EQ(pair.sender.flushed(), all);
  CHECK_EQ(pair.sender.queued(), all);
}

// The owner of the link accepts new messages between two turns.
TEST(stream_link, chunks_wait_one_turn_for_the_grants_of_new_messages) {
  LinkPair pair(1);
  Transfer transfer(pair, 64 * kMiB);
  const auto data = pattern(10'000);
  std::array<SentMessage, 3> messages;
  Stream& sender = pair.sender.streams()[0];
  Stream& receiver = pair.receiver.streams()[0];
  std::uint64_t before = pair.sender.bytes_started();
  const auto turn = [&](SentMessage& message) {
    pair.receiver.send(message, kHead, data);
    receiver.readable = receiver.writable = true;
    pair.receiver.progress();
    sender.readable = sender.writable = true;
    pair.sender.progress();
    const std::uint64_t now = pair.sender.bytes_started();
    return std::exchange(before, now) != now;
  };
  CHECK(!turn(messages[0]));
  CHECK(turn(messages[1]));  // messages that keep arriving hold chunks back no longer
  CHECK(!turn(messages[2]));
  REQUIRE(pair.turn_until([&] { return transfer.done(); }));
  CHECK(transfer.into == transfer.data);
}

TEST(stream_link, messages_and_control_on_other_streams_are_refused) {
  for (const FrameKind kind : {FrameKind::kGrant, FrameKind::kGoodbye}) {
    LinkPair pair(2);
    pair.sender.streams()[1].frames().append(Frame{.kind = kind});
    REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
    CHECK(pair.receiver.ended()->find("a control frame on a stream for chunks") !=
          std::string::npos);
  }
}

}  // namespace
}  // namespace bluecomm::stream
