// How payloads that do not lie in shared memory are copied for the peers.
#include <memory>
#include <vector>

#include "tests/check.h"
#include "tests/transport/shm_raw_peer.h"

namespace bluecomm::test {
namespace {

const std::vector<std::byte> kPayload(2 * kChunkBytes, std::byte{5});

void answer(RawShmPeer& end, FrameKind kind, std::uint64_t length = 0) {
  end.write({.kind = kind, .id = 1, .length = length});
  end.channel->poll(end.sink);
}

TEST(shm_staging, copies_ahead_but_releases_only_what_was_accepted) {
  const auto shared = make_shared_state();
  RawShmPeer end(shared);
  const auto sent = end.channel->send({}, kPayload);
  CHECK_EQ(shared->staged_bytes, kPayload.size());
  CHECK(end.last_answer() == FrameKind::kChunk);
  CHECK_EQ(sent->released(), 0u);
  answer(end, FrameKind::kGrant);
  CHECK_EQ(sent->released(), kPayload.size());
  answer(end, FrameKind::kConsumed, kPayload.size());
  CHECK_EQ(shared->staged_bytes, 0u);
}

TEST(shm_staging, copies_no_further_ahead_than_agreed) {
  const auto shared = make_shared_state();
  RawShmPeer end(shared);
  const std::vector<std::byte> long_payload(8 * kChunkBytes);
  const auto sent = end.channel->send({}, long_payload);
  CHECK_EQ(shared->staged_bytes, kChunksAhead * kChunkBytes);
  answer(end, FrameKind::kGrant);
  CHECK_EQ(shared->staged_bytes, kChunksPerMessage * kChunkBytes);
}

TEST(shm_staging, leaves_half_of_the_memory_to_accepted_messages) {
  const auto shared = make_shared_state();
  shared->options.staging_bytes = 2 * kChunkBytes;
  RawShmPeer first(shared);
  RawShmPeer second(shared);
  const auto sent = first.channel->send({}, kPayload);
  const auto other = second.channel->send({}, kPayload);
  CHECK_EQ(shared->staged_bytes, kChunkBytes);
  answer(second, FrameKind::kGrant);
  CHECK_EQ(shared->staged_bytes, 2 * kChunkBytes);
}

TEST(shm_staging, copies_once_for_several_readers) {
  const auto shared = make_shared_state();
  RawShmPeer first(shared);
  RawShmPeer second(shared);
  std::shared_ptr<void> copies;
  Lease lease;
  const auto sent = first.channel->send_to_many({}, kPayload, copies, lease);
  const auto other = second.channel->send_to_many({}, kPayload, copies, lease);
  CHECK_EQ(shared->staged_bytes, kPayload.size());
  for (RawShmPeer* end : {&first, &second}) {
    answer(*end, FrameKind::kGrant);
    CHECK_EQ(shared->staged_bytes, kPayload.size());
    answer(*end, FrameKind::kConsumed, kPayload.size());
  }
  CHECK(!lease.has_tenants());
  CHECK_EQ(shared->staged_bytes, 0u);
}

TEST(shm_staging, separate_sends_share_no_copies) {
  const auto shared = make_shared_state();
  RawShmPeer first(shared);
  RawShmPeer second(shared);
  const auto sent = first.channel->send({}, kPayload);
  const auto other = second.channel->send({}, kPayload);
  CHECK_EQ(shared->staged_bytes, 2 * kPayload.size());
}

TEST(shm_staging, a_cancelled_message_gives_its_copies_back) {
  const auto shared = make_shared_state();
  RawShmPeer end(shared);
  auto sent = end.channel->send({}, kPayload);
  sent.reset();
  CHECK(end.last_answer() == FrameKind::kCancel);
  answer(end, FrameKind::kDiscard);
  CHECK_EQ(shared->staged_bytes, 0u);
}

}  // namespace
}  // namespace bluecomm::test
