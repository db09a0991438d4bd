#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <set>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/channel.h"
#include "transport/mpi/outbox.h"
#include "transport/mpi/port.h"

namespace bluecomm::mpi {

class Inbox;

// A received message. It owns the part of its payload that has arrived, so that part
// stays readable when the link is lost.
class MpiIncoming final : public Incoming {
 public:
  // `eager` is the payload, if any, that arrived in the port's current frame.
  MpiIncoming(Inbox& inbox, const Frame& frame, const Header& header,
              std::span<const std::byte> eager);
  ~MpiIncoming() override;

  const Header& header() const override { return header_; }
  // Chunks arrive in the transport's memory, because a receive into the caller's memory
  // could not be withdrawn if the message is dropped.
  void accept(std::span<std::byte> into) override;
  std::span<const std::byte> readable() const override;
  void consume(std::size_t nbytes) override;
  std::size_t consumed() const override { return consumed_; }

 private:
  friend class Inbox;

  // An eager payload of at least this size stays in the frame in which it arrived.
  // Frames are kMaxFrame long whatever they hold.
  static constexpr std::size_t kKeptEager = kMaxEager / 4;

  std::size_t nbytes() const { return header_.nbytes; }
  bool wants_more() const {
    return accepted_ && !is_eager_ && !is_cancelled_ && granted_ < in_chunks_;
  }
  bool is_whole() const {
    return arrived_ == in_chunks_ && in_chunks_ + seal_.size() == nbytes();
  }

  Inbox* inbox_;  // null once the transport has been destroyed
  const std::uint64_t message_;
  const std::size_t charged_;
  Header header_;
  const bool is_eager_;
  const std::size_t in_chunks_;  // the number of bytes of the payload in chunks
  const int early_tag_;
  std::size_t early_;            // bytes sent early, under early_tag_
  std::vector<std::byte> seal_;  // the bytes after in_chunks_, once they have arrived
  const std::byte* eager_ = nullptr;  // in frame_ or copy_
  Buffer frame_;
  std::vector<std::byte> copy_;
  bool accepted_ = false;
  bool is_cancelled_ = false;  // by the sender
  int tag_ = -1;
  std::size_t consumed_ = 0;
  std::size_t granted_ = 0;  // receives have been started for [0, granted_)
  std::size_t arrived_ = 0;
  std::deque<ChunkReceive> posted_;  // the receives of [arrived_, granted_)
  std::deque<Buffer> chunks_;  // arrived, beginning with the one that holds consumed_
};

// Receives messages from one peer, and grants how much of each the peer may send.
//
// The memory for one peer is kEagerCredit of eager messages (up to four times that,
// because they may keep whole frames), a header for each larger message that is not
// accepted yet, and kWindow for each message that is being read while kBudget lasts.
// Each accepted message gets at least one chunk, so that it arrives whatever the
// others do.
class Inbox {
 public:
  Inbox(Port& port, Outbox& outbox, const PortAddress& peer)
      : port_(port), outbox_(outbox), peer_(peer) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  // Handles a whole frame of kind kMessage. Returns false if it is malformed.
  bool take(const Frame& frame, std::span<const std::byte> rest);

  // Handles a whole frame of kind kSeal. Returns false if it is malformed.
  bool take_seal(const Frame& frame, std::span<const std::byte> rest);

  // Handles kCancel: the peer has cancelled a message, whose early chunks must be
  // received all the same.
  void cancel(const Frame& frame);

  // The peer sends no more messages.
  void complete() { is_complete_ = true; }

  bool has_arrived() const { return !arrived_.empty(); }
  // Returns the next message in the order of the peer's sends, or null.
  std::unique_ptr<Incoming> take_arrived();

  // Checks the receives under way. Returns true if anything arrived.
  bool progress();
  // The link is lost: messages receive the chunks under way, and ask for no more.
  void lose() { is_lost_ = true; }
  // MPI is about to be finalized: messages do not even receive the chunks under way.
  void release_backend();

  const ChannelStats& stats() const { return stats_; }

 private:
  friend class MpiIncoming;

  static constexpr std::size_t kWindow = 4 * kChunkBytes;
  static constexpr std::size_t kBudget = 32 * kChunkBytes;
  // Credit is returned in steps, because a frame has a cost, too.
  static constexpr std::size_t kCreditStep = kEagerCredit / 4;

  void extend_grant(MpiIncoming& incoming);
  void grant(MpiIncoming& incoming, std::size_t end);
  void receive_next(MpiIncoming& incoming, std::size_t end, int tag);
  void lend_tags();
  bool receive(MpiIncoming& incoming);
  void remove(MpiIncoming& incoming);
  void abandon_receives(MpiIncoming& incoming);
  void abandon_early_chunks(MpiIncoming& incoming);

  Port& port_;
  Outbox& outbox_;
  const PortAddress peer_;
  bool is_lost_ = false;
  bool is_complete_ = false;
  bool has_lent_tags_ = false;
  std::deque<std::unique_ptr<MpiIncoming>> arrived_;
  std::set<MpiIncoming*> known_;  // all messages that exist
  std::unordered_map<std::uint64_t, MpiIncoming*> unsealed_;
  std::set<MpiIncoming*> receiving_;  // messages with receives under way
  std::set<MpiIncoming*> starved_;    // messages that wait for a free tag
  std::size_t held_ = 0;              // bytes granted and not yet consumed
  std::size_t freed_credit_ = 0;      // credit not yet returned
  ChannelStats stats_;
};

}  // namespace bluecomm::mpi
