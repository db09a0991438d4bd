// Buffers that a receiver announces by Link::expect before the message has arrived.
#include <algorithm>
#include <cstdint>
#include <string>
#include <vector>

#include "stream/link.h"
#include "tests/check.h"
#include "tests/stream/link_pair.h"

namespace bluecomm::stream {
namespace {

TEST(stream_link_expect, an_expected_message_needs_no_grant) {
  LinkPair pair(2);
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
  // The chunks arrive before the head of their message.
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

TEST(stream_link_expect, a_message_may_cross_the_announcement_of_its_buffer) {
  LinkPair pair(1);
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

TEST(stream_link_expect, an_announced_buffer_may_be_too_small_or_unneeded) {
  LinkPair pair(2);
  std::vector<std::byte> small(1000);
  pair.receiver.expect(0, small);
  pair.receiver.expect(1, small);
  pair.turn();
  pair.turn();
  Transfer large(pair, kMiB);  // accepted into its own buffer
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

TEST(stream_link_expect, unexpected_early_chunks_are_refused) {
  const auto error_after = [](std::size_t offset, std::size_t nbytes,
                              std::uint64_t message) {
    LinkPair pair(2);
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
  CHECK(error_after(0, kSmallChunk + 1, 0).find(not_asked) != std::string::npos);
  CHECK(error_after(kSmallChunk, 64, 0).find(not_asked) != std::string::npos);
  // The second copy of a chunk.
  CHECK(error_after(64, 64, 0).find(not_asked) != std::string::npos);
  CHECK(error_after(0, 64, 1).find("a chunk of an unknown message") !=
        std::string::npos);
}

// Returns the error of a link that announced kSmallChunk bytes and received a chunk of
// 128 bytes, then the head of the message with a length of `nbytes`.
std::string ended_by_early_chunk(std::size_t nbytes) {
  LinkPair pair(1);
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

TEST(stream_link_expect, a_message_longer_than_expected_has_no_early_chunks) {
  CHECK(ended_by_early_chunk(2 * kSmallChunk).find("a chunk beyond its message") !=
        std::string::npos);
}

TEST(stream_link_expect, a_message_shorter_than_its_early_chunks_is_refused) {
  CHECK(ended_by_early_chunk(64).find("a chunk beyond its message") !=
        std::string::npos);
}

TEST(stream_link_expect, invalid_announcements_are_refused) {
  const auto error_after = [](std::vector<std::uint64_t> messages) {
    LinkPair pair(1);
    for (const std::uint64_t number : messages) {
      Frame frame{.kind = FrameKind::kExpected};
      frame.message = number;
      pair.receiver.streams()[0].frames().append(frame);
    }
    REQUIRE(pair.turn_until([&] { return pair.sender.ended().has_value(); }));
    return *pair.sender.ended();
  };
  CHECK(error_after({kMaxExpected}).find("a receive that is announced too early") !=
        std::string::npos);
  CHECK(error_after({3, 3}).find("receives out of order") != std::string::npos);
}

}  // namespace
}  // namespace bluecomm::stream
