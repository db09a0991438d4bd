#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>

#include "transport/channel.h"
#include "transport/mpi/inbox.h"
#include "transport/mpi/outbox.h"
#include "transport/mpi/port.h"

namespace bluecomm::mpi {

// One peer. MPI connects by itself, so a link is there from the first frame on.
class MpiChannel final : public Channel {
 public:
  // `rank`: this one's. `port` outlives the channel.
  MpiChannel(Port& port, int rank, int peer, const PortAddress& address,
             std::size_t eager_bytes)
      : peer_(peer),
        outbox_(port, rank, address, eager_bytes),
        inbox_(port, outbox_, address) {}

  int peer() const override { return peer_; }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload) override;
  std::unique_ptr<Outgoing> send_to_many(const Header& header,
                                         std::span<const std::byte> payload,
                                         std::shared_ptr<void>& copies,
                                         Lease& lease) override;
  void post(const Header& header, std::span<const std::byte> payload) override;
  ChannelStats stats() const override;

  void take(const Frame& frame, std::span<const std::byte> rest);
  // Moves what can be moved now. True if anything changed.
  bool advance();
  // Hands what has come to the receiver, then the end of the link. True if anything.
  bool report(Receiver& receiver);
  // advance() or report() would do something now, if `has_room` for chunks.
  bool busy(bool has_room) const;

  void forget();
  // The program calls MPI_Finalize, which has begun.
  void release_backend();
  // It has called it.
  void on_finalized();
  void close();
  bool closed() const;
  // Tells the peer, if it has ever heard of this rank, that nothing more will come.
  void announce_drop(DropReason why);

 private:
  bool can_send() const { return !closing_ && !dropped_ && !peer_finished_; }
  // Also to a peer that has never heard of this rank: what it sends from now on would
  // reach nobody, and MPI would not tell. Such a one need not answer.
  bool owes_goodbye() const {
    return closing_ && !goodbye_sent_ && !dropped_ && outbox_.idle();
  }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload, Lease* lease);
  void lose(std::string text);

  const int peer_;
  Outbox outbox_;
  Inbox inbox_;
  bool used_ = false;  // frames went to and fro
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool goodbye_seen_ = false;
  bool peer_finished_ = false;  // it has said goodbye
  bool dropped_ = false;        // the link is dropped, here or there
  bool reported_ = false;       // the receiver knows how the link ended
  std::optional<std::string> lost_;
};

}  // namespace bluecomm::mpi
