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

// A received message. It owns what has arrived of its payload, so it stays readable
// when the link is gone.
class MpiIncoming final : public Incoming {
 public:
  // `eager`: the payload that came along, if any, in the port's frame of the moment.
  MpiIncoming(Inbox& inbox, const Frame& frame, const Header& header,
              std::span<const std::byte> eager);
  ~MpiIncoming() override;

  const Header& header() const override { return header_; }
  // Chunks arrive in memory of MPI's own liking: a receive into the caller's memory
  // could not be taken back when the message is dropped.
  void accept(std::span<std::byte> into) override;
  std::span<const std::byte> readable() const override;
  void consume(std::size_t nbytes) override;
  std::size_t consumed() const override { return consumed_; }

 private:
  friend class Inbox;

  // An eager payload so long stays in the frame that it came in, which is kMaxFrame
  // long whatever it holds.
  static constexpr std::size_t kKeptEager = kMaxEager / 4;

  std::size_t nbytes() const { return header_.nbytes; }
  bool wants_more() const {
    return accepted_ && !is_eager_ && !is_cancelled_ && granted_ < in_chunks_;
  }
  bool is_whole() const {
    return arrived_ == in_chunks_ && in_chunks_ + seal_.size() == nbytes();
  }

  Inbox* inbox_;  // null once the transport is gone
  const std::uint64_t message_;
  const std::size_t charged_;
  Header header_;
  const bool is_eager_;
  const std::size_t in_chunks_;  // bytes of the payload
  const int early_tag_;
  std::size_t early_;                 // the first of these, which come under that tag
  std::vector<std::byte> seal_;       // the others, when they have come
  const std::byte* eager_ = nullptr;  // in frame_ or copy_
  Buffer frame_;
  std::vector<std::byte> copy_;
  bool accepted_ = false;
  bool is_cancelled_ = false;  // the sender has dropped it
  int tag_ = -1;
  std::size_t consumed_ = 0;
  std::size_t granted_ = 0;  // receives were started for [0, granted_)
  std::size_t arrived_ = 0;
  std::deque<PostedReceive> posted_;  // those of [arrived_, granted_)
  std::deque<Buffer> chunks_;         // arrived, from the one that holds consumed_ on
};

// Messages from one peer, and how much of each it may send.
//
// Memory for one peer: kEagerCredit of eager messages (up to four times that, as they
// keep whole frames), a head for each larger one that
// is not accepted yet, and kWindow for each that is being read while kBudget lasts, but
// at least one chunk, so that every accepted message gets through whatever the others
// do.
class Inbox {
 public:
  Inbox(Port& port, Outbox& outbox, const PortAddress& peer)
      : port_(port), outbox_(outbox), peer_(peer) {}
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;
  ~Inbox();

  // A frame of kind kMessage, whole. False: it makes no sense.
  bool take(const Frame& frame, std::span<const std::byte> rest);

  // A frame of kind kSeal, likewise.
  bool take_seal(const Frame& frame, std::span<const std::byte> rest);

  // The peer has dropped a message, whose early chunks are to be received all the same.
  void cancel(const Frame& frame);

  // The peer sends no more messages.
  void complete() { is_complete_ = true; }

  bool has_arrived() const { return !arrived_.empty(); }
  // The next message in the order of the peer's sends; null if none.
  std::unique_ptr<Incoming> take_arrived();

  // Looks at the receives under way. True if anything came.
  bool progress();
  // The link is gone: messages get what is on its way, and ask for no more.
  void lose() { is_lost_ = true; }
  // Nor do they get that: MPI is about to end.
  void release_backend();

  const ChannelStats& stats() const { return stats_; }

 private:
  friend class MpiIncoming;

  static constexpr std::size_t kWindow = 4 * kChunkBytes;
  static constexpr std::size_t kBudget = 32 * kChunkBytes;
  // Credit is returned in steps, for a frame costs something too.
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
  std::set<MpiIncoming*> known_;  // all that exist
  std::unordered_map<std::uint64_t, MpiIncoming*> unsealed_;
  std::set<MpiIncoming*> receiving_;  // those with receives under way ...
  std::set<MpiIncoming*> starved_;    // ... and those without a tag
  std::size_t held_ = 0;              // bytes granted and not consumed
  std::size_t freed_credit_ = 0;      // not yet returned
  ChannelStats stats_;
};

}  // namespace bluecomm::mpi
