// A channel whose peer writes nonsense into the shared memory.
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/transport/shm_raw_peer.h"

namespace bluecomm::test {
namespace {

void expect_loss(const std::string& text,
                 const std::function<void(RawShmPeer&)>& write) {
  RawShmPeer fixture;
  write(fixture);
  for (int i = 0; i < 3; ++i) fixture.channel->poll(fixture.sink);
  CHECK_EQ(fixture.sink.lost.size(), 1u);
  if (fixture.sink.lost.empty()) return;
  const std::string& got = fixture.sink.lost[0];
  if (got.find(text) == std::string::npos) CHECK_EQ(got, text);
  CHECK(got.find("shm link of rank 0 to rank 1") == 0);
}

TEST(shm_corruption, impossible_positions_of_a_ring_are_a_loss) {
  expect_loss("impossible start",
              [](RawShmPeer& f) { f.ring().head = kRingBytes + 16; });
  expect_loss("impossible start", [](RawShmPeer& f) {
    f.write({.kind = FrameKind::kSegmentGone});
    f.channel->poll(f.sink);
    f.ring().head = 16;
  });
  expect_loss("impossible end", [](RawShmPeer& f) {
    f.memory().directions[0].ring.tail = 1 << 20;
    const std::vector<std::byte> payload(4000);
    for (int i = 0; i < 40; ++i) f.channel->post({}, payload);
  });
}

TEST(shm_corruption, malformed_frames_are_a_loss) {
  expect_loss("half a frame", [](RawShmPeer& f) { f.ring().head = 16; });
  for (const std::uint32_t nbytes : {0, 16, 49, 4096}) {
    expect_loss("a frame of " + std::to_string(nbytes) + " bytes", [&](RawShmPeer& f) {
      f.write({.nbytes = nbytes, .kind = FrameKind::kGoodbye});
      f.ring().head = sizeof(Frame);
    });
  }
  expect_loss("unknown type 77",
              [](RawShmPeer& f) { f.write({.kind = static_cast<FrameKind>(77)}); });
  expect_loss("it sent message 2 after 0",
              [](RawShmPeer& f) { f.start_message(2, FrameKind::kLarge, 10); });
  expect_loss("it sent message 1 after 0, in 48 bytes",
              [](RawShmPeer& f) { f.write({.kind = FrameKind::kEager, .id = 1}); });
  for (const std::uint64_t nbytes :
       {std::uint64_t{100}, std::uint64_t{1} << 62, ~0ul}) {
    expect_loss("bytes in a frame of",
                [&](RawShmPeer& f) { f.start_message(1, FrameKind::kEager, nbytes); });
  }
  expect_loss("it announced 0 bytes",
              [](RawShmPeer& f) { f.start_message(1, FrameKind::kLarge, 0); });
}

TEST(shm_corruption, malformed_answers_are_a_loss) {
  expect_loss("more credit than was used", [](RawShmPeer& f) {
    f.write({.kind = FrameKind::kCredit, .length = 1});
  });
  for (const auto kind :
       {FrameKind::kGrant, FrameKind::kConsumed, FrameKind::kDiscard}) {
    expect_loss("it answered message number 9, but the last is number 0",
                [&](RawShmPeer& f) { f.write({.kind = kind, .id = 9}); });
  }
  expect_loss("accepted message 1 twice", [](RawShmPeer& f) {
    static const std::vector<std::byte> payload(100'000);
    static std::unique_ptr<Outgoing> sent;
    sent = f.channel->send({}, payload);
    for (int i = 0; i < 2; ++i) f.write({.kind = FrameKind::kGrant, .id = 1});
  });
  expect_loss("it consumed 100000 of 0 bytes", [](RawShmPeer& f) {
    static const std::vector<std::byte> payload(100'000);
    static std::unique_ptr<Outgoing> sent;
    sent = f.channel->send({}, payload);
    f.write({.kind = FrameKind::kConsumed, .id = 1, .length = 100'000});
  });
}

TEST(shm_corruption, malformed_chunks_are_a_loss) {
  for (const std::uint64_t length : {0ul, 10ul, 1001ul, ~0ul}) {
    expect_loss("it sent a chunk of " + std::to_string(length), [&](RawShmPeer& f) {
      f.start_message(1, FrameKind::kLarge, 1000);
      f.write({.kind = FrameKind::kChunk, .id = 1, .segment = 5, .length = length});
    });
  }
  expect_loss("its segment 5 cannot be mapped", [](RawShmPeer& f) {
    f.start_message(1, FrameKind::kLarge, 1000);
    f.write({.kind = FrameKind::kChunk, .id = 1, .segment = 5, .length = 1000});
  });
  expect_loss("it sent a part of message 3, but the last is 0",
              [](RawShmPeer& f) { f.write({.kind = FrameKind::kCancel, .id = 3}); });
}

TEST(shm_corruption, a_payload_that_cannot_be_mapped_is_asked_for_in_chunks) {
  RawShmPeer fixture;
  Header header;
  header.nbytes = 1000;
  fixture.write({.nbytes = sizeof(Frame) + sizeof(Header),
                 .kind = FrameKind::kLarge,
                 .id = 1,
                 .segment = 99},
                std::as_bytes(std::span(&header, 1)));
  fixture.channel->poll(fixture.sink);
  CHECK_EQ(fixture.sink.messages.size(), 1u);
  CHECK(fixture.last_answer() == FrameKind::kGrant);
}

// Flips bits and writes noise. The result must be a loss or a message, never a crash
// or a hang.
TEST(shm_corruption, noise_is_survived) {
  std::mt19937_64 random(13);
  for (int round = 0; round < 300; ++round) {
    RawShmPeer fixture;
    for (std::uint64_t id = 1; id < 20 && fixture.sink.lost.empty(); ++id) {
      Frame frame{.kind = static_cast<FrameKind>(1 + random() % 11), .id = id};
      if (frame.kind <= FrameKind::kLarge) frame.nbytes += sizeof(Header);
      Header header;
      header.nbytes = random() % 4 == 0 ? random() : frame.kind != FrameKind::kEager;
      auto* bytes = reinterpret_cast<std::uint8_t*>(&frame);
      if (random() % 4 == 0) bytes[random() % sizeof frame] ^= 1 << random() % 8;
      if (random() % 4 == 0) frame.segment = random() % 3;
      fixture.write(frame, std::as_bytes(std::span(&header, 1)));
      fixture.channel->poll(fixture.sink);
      fixture.sink.read();
    }
    CHECK(fixture.sink.lost.size() <= 1);
  }
}

}  // namespace
}  // namespace bluecomm::test
