#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"
#include "transport/shm/ring.h"

// What the two ends of a shm link say to each other.
//
// A message starts with kEager, which has the payload with it, or kLarge. The payload
// of kLarge is read in place when the frame names the memory where it lies; otherwise
// the sender copies it, chunk by chunk, to staging memory (kChunk): the first chunks at
// once, as far as there is memory, and the others when the receiver has asked for the
// payload by kGrant. The receiver says by kConsumed how much it has read, which
// releases the chunks, or the payload read in place. kCancel (from the sender) is
// answered by kDiscard, which the receiver also sends by itself when it wants no more.

namespace bluecomm::shm {

enum class FrameKind : std::uint32_t {
  kEager = 1,    // sender: followed by Header and payload; `length` counts as credit
  kLarge,        // sender: followed by Header; at (`segment`, `offset`) if not 0
  kChunk,        // sender: next `length` bytes at (`segment`, `offset`)
  kCancel,       // sender
  kGrant,        // receiver: wants the payload; please send all chunks
  kConsumed,     // receiver: the first `length` bytes
  kDiscard,      // receiver: no more, please
  kCredit,       // receiver: `length` bytes of eager payloads have found an owner
  kSegmentGone,  // `segment` will not be named again
  kGoodbye,
};

struct Frame {
  std::uint32_t nbytes = sizeof(Frame);  // with what follows, a multiple of 16
  FrameKind kind{};
  std::uint64_t id = 0;  // of the message; 1, 2, ... in each direction
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t live = 0;  // kLarge in place: index in Direction::live
};
static_assert(sizeof(Frame) == 48);

constexpr std::size_t padded(std::size_t nbytes) { return (nbytes + 15) / 16 * 16; }

// Half a ring, so that a frame always fits once the reader has caught up.
inline constexpr std::size_t kMaxFrame = kRingBytes / 2;
inline constexpr std::size_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kChunksPerMessage = 4;
inline constexpr std::size_t kChunksAhead = 2;  // of those, before kGrant
inline constexpr std::size_t kEagerCredit = 1 << 20;
inline constexpr std::size_t kLiveMessages = 1024;

// The shared memory of one direction of a link. Zero at first.
//
// A sender may have to take a payload away while the receiver reads it in place: then
// it clears the message's word in `live` before it touches the memory, and the
// receiver, which looks there after it has read, does not count what it read. `revoked`
// does the same for all messages at once.
struct Direction {
  RingState ring;
  alignas(64) std::atomic<std::uint32_t> revoked;
  std::atomic<std::uint64_t> live[kLiveMessages];  // id, or 0
};

// Direction 0 is from the rank that dialled.
struct RingPair {
  Direction directions[2];
};

// Orders reads or writes of a payload against those of `live` and `revoked`. (g++ does
// not support fences under its thread sanitizer, so that gets something stronger.)
inline void fence() {
#ifdef __SANITIZE_THREAD__
  std::atomic<int> word = 0;
  word.fetch_add(1);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace bluecomm::shm
