#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"
#include "transport/shm/ring.h"

// The frames that the two ranks of a connection exchange through their rings, and the
// shared memory of the rings.
//
// A message starts with kEager, which carries the payload, or with kLarge. If kLarge
// names the memory where the payload lies, the receiver reads it in place. Otherwise
// the sender copies the payload into staging memory and announces each chunk by kChunk:
// the first chunks immediately, as far as staging memory allows, the others after the
// receiver has asked for the payload by kGrant. kConsumed tells the sender how much the
// receiver has read, which releases the chunks, or the payload that is read in place.
// The receiver answers the sender's kCancel by kDiscard, and also sends kDiscard when
// it no longer wants a message.

namespace bluecomm::shm {

enum class FrameKind : std::uint32_t {
  kEager = 1,    // sender: a Header and the payload follow; uses `length` of credit
  kLarge,        // sender: a Header follows; payload at (`segment`, `offset`) if not 0
  kChunk,        // sender: the next `length` bytes lie at (`segment`, `offset`)
  kCancel,       // sender: the message is cancelled
  kGrant,        // receiver: wants the payload, so all chunks may be sent
  kConsumed,     // receiver: has read the first `length` bytes
  kDiscard,      // receiver: wants no more of the message
  kCredit,       // receiver: `length` bytes of eager payloads were taken
  kSegmentGone,  // sender: will not name `segment` again
  kGoodbye,      // sends no more messages
};

struct Frame {
  std::uint32_t nbytes = sizeof(Frame);  // including what follows; a multiple of 16
  FrameKind kind{};
  std::uint64_t id = 0;  // of the message: 1, 2, ... in each direction
  std::uint64_t segment = 0;
  std::uint64_t offset = 0;
  std::uint64_t length = 0;
  std::uint64_t live = 0;  // kLarge, read in place: index in RingDirection::live
};
static_assert(sizeof(Frame) == 48);

constexpr std::size_t padded(std::size_t nbytes) { return (nbytes + 15) / 16 * 16; }

// Half a ring, so that a frame always fits once the reader has caught up.
inline constexpr std::size_t kMaxFrame = kRingBytes / 2;
inline constexpr std::size_t kChunkBytes = 256 << 10;
inline constexpr std::size_t kChunksPerMessage = 4;
inline constexpr std::size_t kChunksAhead = 2;  // of these, how many before kGrant
inline constexpr std::size_t kEagerCredit = 1 << 20;
inline constexpr std::size_t kLiveMessages = 1024;

// The shared memory of one direction of a connection, initially zero.
//
// A sender may have to take a payload back while the receiver reads it in place. It
// then clears the message's entry in `live` before it changes the memory. The receiver
// checks the entry after reading, and treats what it read as invalid if the entry is
// cleared. `revoked` does the same for all messages at once.
struct RingDirection {
  RingState ring;
  alignas(64) std::atomic<std::uint32_t> revoked;
  std::atomic<std::uint64_t> live[kLiveMessages];  // ids of messages, or 0
  alignas(64) std::atomic<std::uint64_t> beats;    // of the sender; see Channel::beat()
};

// The shared memory of a connection. Direction 0 leads from the rank that dialed.
struct RingPair {
  RingDirection directions[2];
};

// Orders accesses to a payload against those to `live` and `revoked`. g++ does not
// support fences under its thread sanitizer, which therefore gets a stronger
// operation.
inline void fence() {
#ifdef __SANITIZE_THREAD__
  std::atomic<int> word = 0;
  word.fetch_add(1);
#else
  std::atomic_thread_fence(std::memory_order_seq_cst);
#endif
}

}  // namespace bluecomm::shm
