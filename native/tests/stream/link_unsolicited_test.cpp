// Messages that are sent although the peer has no buffer for them yet.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "stream/link.h"
#include "tests/check.h"
#include "tests/stream/link_pair.h"

namespace bluecomm::stream {
namespace {

constexpr OutboxSettings kSettings{
    .eager_credit = 4 * kMiB, .unsolicited_bytes = kMiB, .in_order = true};

// A link whose sender has the settings above.
struct UnsolicitedPair : LinkPair {
  explicit UnsolicitedPair(std::size_t streams)
      : LinkPair(streams, false, Encryption::kOff, kSettings) {
    sender.set_single_stream(true);
  }

  void wait_for(std::size_t messages) {
    REQUIRE(turn_until([&] { return arrived.size() >= messages; }));
  }
};

bool is_complete(const ReceivedMessage& message) {
  return message.readable().size() == message.nbytes();
}

TEST(stream_link_unsolicited, a_message_arrives_before_its_buffer) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  SentMessage message;
  pair.sender.send(message, kHead, data);
  REQUIRE(pair.turn_until([&] { return message.released() == kMiB; }));
  pair.wait_for(1);
  for (int i = 0; i < 100; ++i) pair.turn();
  ReceivedMessage& received = *pair.arrived[0];
  CHECK(!received.accepted());
  CHECK(received.readable().empty());
  std::vector<std::byte> into(kMiB);
  received.accept(into);
  CHECK(is_complete(received));
  CHECK(received.readable().data() == into.data());
  CHECK(into == data);
}

TEST(stream_link_unsolicited, a_buffer_may_be_given_between_any_two_turns) {
  const auto data = pattern(kMiB);
  for (int turns = 0; turns < 40; ++turns) {
    UnsolicitedPair pair(1);
    SentMessage message;
    pair.sender.send(message, kHead, data);
    pair.wait_for(1);
    for (int i = 0; i < turns; ++i) pair.turn();
    std::vector<std::byte> into(kMiB);
    pair.arrived[0]->accept(into);
    REQUIRE(pair.turn_until([&] { return is_complete(*pair.arrived[0]); }));
    CHECK(into == data);
  }
}

TEST(stream_link_unsolicited, a_message_without_a_buffer_can_be_read) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  SentMessage message;
  pair.sender.send(message, kHead, data);
  pair.wait_for(1);
  ReceivedMessage& received = *pair.arrived[0];
  received.accept({});
  REQUIRE(pair.turn_until([&] { return is_complete(received); }));
  CHECK(std::ranges::equal(received.readable(), data));
  received.consume(kMiB / 2);
  CHECK_EQ(received.readable().size(), kMiB / 2);
}

TEST(stream_link_unsolicited, the_credit_limits_what_is_sent) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  std::vector<SentMessage> messages(10);
  for (SentMessage& one : messages) pair.sender.send(one, kHead, data);
  pair.wait_for(messages.size());
  for (int i = 0; i < 100; ++i) pair.turn();
  // The heads count, too.
  CHECK_EQ(messages[2].released(), kMiB);
  CHECK_EQ(messages[3].released(), 0u);
  CHECK_EQ(pair.sender.bytes_started(), 3 * kMiB);
  // The others are granted when they get a buffer, and their credit comes back.
  std::vector<std::byte> into(kMiB);
  for (auto& received : pair.arrived) {
    received->accept(into);
    REQUIRE(pair.turn_until([&] { return is_complete(*received); }));
    CHECK(into == data);
    received.reset();
  }
  pair.turn();
  SentMessage more;
  pair.sender.send(more, kHead, data);
  REQUIRE(pair.turn_until([&] { return more.released() == kMiB; }));
}

TEST(stream_link_unsolicited, a_buffer_set_beforehand_is_used) {
  for (const std::size_t nbytes : {kMiB, 2 * kMiB}) {
    UnsolicitedPair pair(1);
    const auto data = pattern(nbytes);
    std::vector<std::byte> into(2 * kMiB);
    pair.receiver.expect(0, into, false);
    SentMessage message;
    pair.sender.send(message, kHead, data);
    REQUIRE(pair.turn_until(
        [&] { return !pair.arrived.empty() && is_complete(*pair.arrived[0]); }));
    CHECK(pair.arrived[0]->readable().data() == into.data());
    CHECK(std::equal(data.begin(), data.end(), into.begin()));
  }
}

TEST(stream_link_unsolicited, stream_0_carries_all_chunks_also_later) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  std::vector<SentMessage> messages(2);
  for (SentMessage& one : messages) pair.sender.send(one, kHead, data);
  pair.join();
  pair.sender.set_single_stream(false);
  pair.wait_for(2);
  REQUIRE(pair.turn_until([&] { return messages[1].released() == kMiB; }));
  CHECK_EQ(pair.sender.stats().streams[1].chunks_sent, 0u);
  // Now a message waits until it has a buffer.
  SentMessage late;
  pair.sender.send(late, kHead, data);
  pair.wait_for(3);
  for (int i = 0; i < 100; ++i) pair.turn();
  CHECK_EQ(late.released(), 0u);
  std::vector<std::byte> into(kMiB);
  pair.arrived[2]->accept(into);
  REQUIRE(pair.turn_until([&] { return is_complete(*pair.arrived[2]); }));
  CHECK(into == data);
  CHECK(pair.sender.stats().streams[1].chunks_sent > 0);
}

TEST(stream_link_unsolicited, a_message_dropped_halfway_leaves_the_link_usable) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  for (int turns = 0; turns < 20; ++turns) {
    SentMessage dropped;
    pair.sender.send(dropped, kHead, data);
    pair.wait_for(1);
    for (int i = 0; i < turns; ++i) pair.turn();
    pair.arrived.clear();
    SentMessage message;
    pair.sender.send(message, kHead, data);
    pair.wait_for(1);
    std::vector<std::byte> into(kMiB);
    pair.arrived[0]->accept(into);
    REQUIRE(pair.turn_until([&] { return is_complete(*pair.arrived[0]); }));
    CHECK(into == data);
    pair.arrived.clear();
  }
}

TEST(stream_link_unsolicited, what_has_arrived_can_be_accepted_after_the_end) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  SentMessage message;
  pair.sender.send(message, kHead, data);
  REQUIRE(pair.turn_until([&] { return message.released() == kMiB; }));
  for (int i = 0; i < 100; ++i) pair.turn();
  pair.receiver.end();
  std::vector<std::byte> into(kMiB);
  pair.arrived[0]->accept(into);
  CHECK(is_complete(*pair.arrived[0]));
  CHECK(into == data);
}

TEST(stream_link_unsolicited, invalid_chunks_and_messages_are_refused) {
  // Returns the error of a receiver that gets the head of an unsolicited message, then
  // a chunk.
  const auto error_after = [](std::size_t nbytes, std::size_t offset,
                              std::size_t stream) {
    UnsolicitedPair pair(2);
    OutBuffer& out = pair.sender.streams()[0].frames();
    Frame message{.kind = FrameKind::kMessage, .flags = kCharged};
    message.length = static_cast<std::uint32_t>(kHead.size());
    message.offset = nbytes;
    out.append(message);
    out.append(kHead);
    for (int i = 0; i < 3; ++i) pair.turn();
    Frame chunk{.kind = FrameKind::kChunk};
    chunk.length = 64;
    chunk.offset = offset;
    OutBuffer& chunks = pair.sender.streams()[stream].frames();
    chunks.append(chunk);
    chunks.append(std::vector<std::byte>(64));
    REQUIRE(pair.turn_until([&] { return pair.receiver.ended().has_value(); }));
    return *pair.receiver.ended();
  };
  const std::string not_asked = "a chunk that was not asked for";
  CHECK(error_after(kMiB, 64, 0).find(not_asked) != std::string::npos);
  CHECK(error_after(kMiB, 0, 1).find(not_asked) != std::string::npos);
  CHECK(error_after(32, 0, 0).find(not_asked) != std::string::npos);
  CHECK(error_after(kMaxUnsolicited + 1, 0, 0).find("too many unsolicited bytes") !=
        std::string::npos);
}

TEST(stream_link_unsolicited, the_oldest_message_goes_first_if_in_order) {
  UnsolicitedPair pair(1);
  const auto data = pattern(kMiB);
  std::vector<SentMessage> messages(2);
  for (SentMessage& one : messages) pair.sender.send(one, kHead, data);
  while (messages[0].released() < kMiB) {
    CHECK_EQ(messages[1].released(), 0u);
    pair.turn();
  }
}

}  // namespace
}  // namespace bluecomm::stream
