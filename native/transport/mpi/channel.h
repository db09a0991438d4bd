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

// The channel to one peer over MPI. MPI connects by itself, so the link exists from
// the first frame on.
class MpiChannel final : public Channel {
 public:
  // `rank` is this rank. `port` must outlive the channel.
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
  // Moves what can be moved now. Returns true if anything changed.
  bool advance();
  // Reports the messages that have arrived, then the end of the link. Returns true if
  // it reported anything.
  bool report(Receiver& receiver);
  // Whether advance() or report() would do something now. `has_room` says whether the
  // port has room for chunks.
  bool busy(bool has_room) const;

  void forget();
  // MPI_Finalize has begun: tells the peer, and drops the link.
  void release_backend();
  // MPI_Finalize has been called: drops the link without calling MPI.
  void on_finalized();
  void close();
  bool closed() const;
  // Tells the peer that this rank drops the link, if the two have exchanged any frame.
  void announce_drop(DropReason why);

 private:
  bool can_send() const { return !closing_ && !dropped_ && !peer_finished_; }
  // A goodbye also goes to a peer with which no frame was exchanged: the messages that
  // it might still send would be lost, and MPI would not report that. Such a peer need
  // not answer.
  bool owes_goodbye() const {
    return closing_ && !goodbye_sent_ && !dropped_ && outbox_.idle();
  }
  std::unique_ptr<Outgoing> send(const Header& header,
                                 std::span<const std::byte> payload, Lease* lease);
  void lose(std::string text);

  const int peer_;
  Outbox outbox_;
  Inbox inbox_;
  bool used_ = false;  // a frame has been sent or received
  bool closing_ = false;
  bool goodbye_sent_ = false;
  bool goodbye_seen_ = false;
  bool peer_finished_ = false;  // the peer has said goodbye
  bool dropped_ = false;        // by this rank or by the peer
  bool reported_ = false;       // the receiver has been told how the link ended
  std::optional<std::string> lost_;
};

}  // namespace bluecomm::mpi
