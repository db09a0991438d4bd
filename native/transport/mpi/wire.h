#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

// What two ranks say to each other over MPI.
//
// Frames go under the transport's first tag: MPI keeps the order of messages of one tag
// and pair. Payloads that are not eager travel in chunks, cut at multiples of
// kChunkBytes. The receiver asks for them: it starts the receive of each chunk, under a
// tag that it has chosen for the message, and then sends a grant. So chunks meet
// receives that wait for them, and MPI never has to keep one.
//
// For each chunk that was granted exactly one message travels under the tag. A sender
// that has dropped the message, or was told that nobody wants it, sends an empty one.
// Hence every receive ends, and the tag may be used again, without MPI_Cancel.
//
// Chunks are sent early, right behind the head of their message, where the receiver has
// lent the sender a tag for that. Then MPI tells the receiver of them, and keeps them
// with the sender until their receives are started: when the message is accepted, or
// when it is dropped, by either. So for each early chunk there is exactly one receive,
// too. They are sent in MPI's synchronous mode, whose end tells the sender of the
// receives' start; from then on the tag is free.
//
// A payload that is sent straight from its memory is sealed: its last bytes travel in a
// frame, once MPI has taken all others. They do not come if the sender has dropped the
// message meanwhile, whose memory may have changed before MPI read it.

namespace bluecomm::mpi {

inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

// What is sent early of a payload, at most, and how many of a peer's messages.
inline constexpr std::size_t kEarlyBytes = 4 * kChunkBytes;
inline constexpr int kEarlyTags = 8;

// Eager payloads that a peer has not yet given back are at most so many bytes.
inline constexpr std::size_t kEagerCredit = std::size_t{1} << 20;
inline constexpr std::size_t kMaxEager = std::size_t{64} << 10;

enum class FrameKind : std::uint32_t {
  kMessage,      // then the Header and, if `end` is not 0, the eager payload;
                 // otherwise `begin` bytes come in chunks, the others as the seal;
                 // with `tag` the first kEarlyBytes of them are under way under it
  kGrant,        // chunks of `message` in [begin, end), under `tag`
  kSeal,         // then the bytes of `message` that come in no chunk
  kTags,         // the receiver of this may send early under [`tag`, `tag` + `end`)
  kDiscard,      // nobody wants the rest of `message`
  kCancel,       // its early chunks are the last that come of `message`
  kCredit,       // `end` bytes of eager messages were taken
  kGoodbye,      // nothing more comes
  kGoodbyeSeen,  // answer to that
  kDropped,      // with a DropReason as `end`: this rank has dropped the link
};

// Why a rank dropped a link.
enum class DropReason : std::uint64_t { kDropped, kFinalize };

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  std::int32_t from = 0;  // rank
  std::int32_t tag = 0;
  std::uint32_t charged = 0;  // an eager message whose bytes are to be given back
  std::uint64_t to = 0;       // the receiver's transport, as its address says
  std::uint64_t message = 0;  // number, counted by the sender for each peer
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
static_assert(sizeof(Frame) == 48);

// Payloads so long are sent straight from their memory, where it is lent. A copy of
// shorter ones costs less than the seal, which waits for MPI.
inline constexpr std::size_t kMinZeroCopy = std::size_t{128} << 10;

// How many bytes of a straight payload come in chunks.
constexpr std::size_t before_seal(std::size_t nbytes) {
  return (nbytes - 1) / kChunkAlignment * kChunkAlignment;
}

// How many bytes of those in chunks are sent early, under `tag` if there is one.
constexpr std::size_t early_part(int tag, std::size_t in_chunks) {
  return tag == 0 ? 0 : std::min(in_chunks, kEarlyBytes);
}

inline constexpr std::size_t kMaxFrame = sizeof(Frame) + sizeof(Header) + kMaxEager;

}  // namespace bluecomm::mpi
