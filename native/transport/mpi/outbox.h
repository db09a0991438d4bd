#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "transport/channel.h"
#include "transport/mpi/port.h"

namespace bluecomm::mpi {

class Outbox;

class MpiOutgoing final : public Outgoing {
 public:
  // Makes a message that is already complete; `released` bytes have been released.
  explicit MpiOutgoing(std::size_t released) : released_(released) {}
  // With a `lease` this is a zero-copy send: MPI reads the caller's payload.
  MpiOutgoing(Outbox& outbox, std::uint64_t message, std::span<const std::byte> payload,
              std::shared_ptr<const void> lease)
      : outbox_(&outbox),
        message_(message),
        payload_(payload),
        lease_(std::move(lease)),
        in_chunks_(lease_ ? before_seal(payload.size()) : payload.size()) {}
  ~MpiOutgoing() override;

  std::size_t released() const override { return released_; }

 private:
  friend class Outbox;

  Outbox* outbox_ = nullptr;  // null once the message has ended or the link is lost
  std::uint64_t message_ = 0;
  std::span<const std::byte> payload_;
  std::shared_ptr<const void> lease_;
  // The number of bytes of the payload in chunks; the others are the seal.
  std::size_t in_chunks_ = 0;
  std::size_t early_ = 0;  // bytes that were sent early
  // Chunks that MPI reads from the payload, in order.
  std::deque<ZeroCopySend> zero_copy_sends_;
  bool unwanted_ = false;  // the peer has discarded it
  std::size_t released_ = 0;
};

// Sends messages to one peer.
//
// MPI reads a buffer until its send completes, but a message may be cancelled at any
// moment. So the outbox copies each chunk and lets MPI read the copy. The copy is
// cheap, because the engine has just written that memory or is about to read it. A
// chunk of a large payload whose memory is lent is not copied, but given to the port
// together with the lease. Such chunks are sent early while the peer's lent tags last.
class Outbox {
 public:
  Outbox(Port& port, int rank, const PortAddress& peer, std::size_t eager_bytes)
      : port_(port), rank_(rank), peer_(peer), eager_bytes_(eager_bytes) {}
  Outbox(const Outbox&) = delete;
  Outbox& operator=(const Outbox&) = delete;
  ~Outbox() { lose(); }

  // If `lease` is null, the payload's memory is not lent and must be copied.
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload, Lease* lease);
  void post(const Header& header, std::span<const std::byte> payload);
  // Sends a frame without a payload.
  void control(Frame frame);

  // Each handles a frame from the peer.
  void grant(const Frame& frame);
  void discard(const Frame& frame);
  void credit(const Frame& frame);
  void lend_tags(const Frame& frame);

  // Sends granted chunks while there is room, and the seals of payloads that MPI has
  // read. Returns true if it sent anything.
  bool progress();
  bool has_chunks() const { return !chunks_.empty(); }
  // Whether no message waits for anything.
  bool idle() const { return waiting_.empty() && chunks_.empty(); }
  // The link is lost: forgets all messages.
  void lose();

  const ChannelStats& stats() const { return stats_; }

 private:
  friend class MpiOutgoing;

  static constexpr int kChunksPerTurn = 4;

  struct Chunk {
    std::uint64_t message;
    int tag;
    std::size_t begin;
    std::size_t end;
  };

  // A tag that the peer has lent, in use as long as this object lives.
  struct EarlyTag;

  void announce(const Header& header, std::span<const std::byte> payload,
                std::span<const std::byte> eager, bool charged,
                std::size_t in_chunks = 0, int early_tag = 0);
  std::unique_ptr<Outgoing> send_in_chunks(const Header& header,
                                           std::span<const std::byte> payload,
                                           Lease* lease);
  void send_early(MpiOutgoing& outgoing, int tag);
  void send_chunk(const Chunk& chunk);
  void send_copied(MpiOutgoing& outgoing, const Chunk& chunk);
  void send_zero_copy(MpiOutgoing& outgoing, const Chunk& chunk);
  bool poll_zero_copy();
  bool reclaim(MpiOutgoing& outgoing);
  void seal(MpiOutgoing& outgoing);
  void forget(MpiOutgoing& outgoing);
  void detach(MpiOutgoing& outgoing);

  Port& port_;
  const int rank_;
  const PortAddress peer_;
  const std::size_t eager_bytes_;
  std::uint64_t next_message_ = 0;
  // Bytes of eager messages whose credit the peer has not returned.
  std::size_t charged_ = 0;
  std::unordered_map<std::uint64_t, MpiOutgoing*> waiting_;
  std::set<MpiOutgoing*> reading_;  // of these, the ones whose payload MPI reads
  std::deque<Chunk> chunks_;        // granted, in this order
  // Lent tags that are free.
  const std::shared_ptr<std::vector<int>> early_tags_ =
      std::make_shared<std::vector<int>>();
  const std::shared_ptr<bool> is_lost_ = std::make_shared<bool>(false);
  ChannelStats stats_;
};

}  // namespace bluecomm::mpi
