#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "transport/channel.h"

// The frames that two ranks exchange over MPI, and the rules for chunks.
//
// Frames use the transport's first tag, because MPI keeps the order of messages of one
// tag and pair. Payloads that are not eager travel in chunks, cut at multiples of
// kChunkBytes. The receiver asks for chunks: it starts the receive of each chunk,
// under a tag that it has chosen for the message, and then sends a grant. So chunks
// meet receives that wait for them, and MPI never has to buffer one.
//
// For each granted chunk, exactly one MPI message travels under the tag. A sender that
// has cancelled the message, or was told that nobody wants it, sends an empty one.
// Hence every receive completes, and the tag can be used again, without MPI_Cancel.
//
// A sender sends early chunks right behind the head of their message, if the receiver
// has lent it a tag for that. MPI tells the receiver of these chunks and keeps them at
// the sender until the receiver starts their receives: when it accepts the message, or
// when either side drops it. So for each early chunk there is exactly one receive,
// too. Early chunks use MPI's synchronous mode, so their completion tells the sender
// that the receives have started; from then on the tag is free.
//
// A zero-copy payload, which MPI reads from the caller's memory, is sealed: its last
// bytes travel in a frame, after MPI has read all others. The seal is not sent if the
// sender has cancelled the message meanwhile, because the memory may have changed
// before MPI read it.

namespace bluecomm::mpi {

inline constexpr std::size_t kChunkBytes = std::size_t{256} << 10;

// The number of bytes of a payload that may be sent early, and the number of messages
// per peer that may use this at a time.
inline constexpr std::size_t kEarlyBytes = 4 * kChunkBytes;
inline constexpr int kEarlyTags = 8;

// At most this many bytes of eager messages may be at a peer that has not returned
// their credit.
inline constexpr std::size_t kEagerCredit = std::size_t{1} << 20;
inline constexpr std::size_t kMaxEager = std::size_t{64} << 10;

enum class FrameKind : std::uint32_t {
  kMessage,      // the Header follows and, if `end` is not 0, the eager payload;
                 // otherwise `begin` bytes travel in chunks, the others as the seal; if
                 // `tag` is not 0, the first kEarlyBytes are under way under it
  kGrant,        // chunks of `message` in [begin, end), under `tag`
  kSeal,         // the last bytes of `message`, which are in no chunk, follow
  kTags,         // the receiver may send early under [`tag`, `tag` + `end`)
  kDiscard,      // the receiver does not want the rest of `message`
  kCancel,       // the sender cancels `message`: only its early chunks still arrive
  kCredit,       // `end` bytes of eager messages were taken
  kGoodbye,      // the sender sends no more messages
  kGoodbyeSeen,  // answers kGoodbye
  kDropped,      // this rank has dropped the link; `end` is a DropReason
};

// Why a rank dropped a link.
enum class DropReason : std::uint64_t { kDropped, kFinalize };

struct Frame {
  FrameKind kind = FrameKind::kMessage;
  std::int32_t from = 0;  // rank
  std::int32_t tag = 0;
  std::uint32_t charged = 0;  // 1: eager message whose credit must be returned
  std::uint64_t to = 0;       // the receiver's transport: PortAddress::transport
  std::uint64_t message = 0;  // number of the message, counted per sender and peer
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
};
static_assert(sizeof(Frame) == 48);

// Payloads of at least this size are sent without a copy if their memory is lent. A
// copy of a shorter one costs less than the seal, which waits for MPI.
inline constexpr std::size_t kMinZeroCopy = std::size_t{128} << 10;

// The number of bytes of a zero-copy payload that travel in chunks.
constexpr std::size_t before_seal(std::size_t nbytes) {
  return (nbytes - 1) / kChunkAlignment * kChunkAlignment;
}

// The number of bytes in chunks that are sent early under `tag`; 0 if there is no tag.
constexpr std::size_t early_part(int tag, std::size_t in_chunks) {
  return tag == 0 ? 0 : std::min(in_chunks, kEarlyBytes);
}

inline constexpr std::size_t kMaxFrame = sizeof(Frame) + sizeof(Header) + kMaxEager;

}  // namespace bluecomm::mpi
