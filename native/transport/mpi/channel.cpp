// An MpiChannel: hands each frame from the peer to its outbox or inbox, and keeps the
// state of the link from the first frame to the goodbye or the loss. The mpi transport
// calls it from poll(), under the progress lock.
#include "transport/mpi/channel.h"

#include <utility>

namespace bluecomm::mpi {

std::unique_ptr<Outgoing> MpiChannel::send(const Header& header,
                                           std::span<const std::byte> payload) {
  return send(header, payload, nullptr);
}

std::unique_ptr<Outgoing> MpiChannel::send_to_many(const Header& header,
                                                   std::span<const std::byte> payload,
                                                   std::shared_ptr<void>&,
                                                   Lease& lease) {
  return send(header, payload, &lease);
}

std::unique_ptr<Outgoing> MpiChannel::send(const Header& header,
                                           std::span<const std::byte> payload,
                                           Lease* lease) {
  if (!can_send()) return std::make_unique<MpiOutgoing>(0);
  used_ = true;
  return outbox_.send(header, payload, lease);
}

void MpiChannel::post(const Header& header, std::span<const std::byte> payload) {
  if (!can_send()) return;
  used_ = true;
  outbox_.post(header, payload);
}

ChannelStats MpiChannel::stats() const {
  ChannelStats stats = outbox_.stats();
  stats.messages_received = inbox_.stats().messages_received;
  stats.bytes_received = inbox_.stats().bytes_received;
  return stats;
}

void MpiChannel::take(const Frame& frame, std::span<const std::byte> rest) {
  if (dropped_) return;
  used_ = true;
  switch (frame.kind) {
    case FrameKind::kMessage:
      if (!inbox_.take(frame, rest)) lose("it sent a malformed message frame");
      return;
    case FrameKind::kGrant:
      outbox_.grant(frame);
      return;
    case FrameKind::kSeal:
      if (!inbox_.take_seal(frame, rest)) lose("it sent a malformed seal frame");
      return;
    case FrameKind::kTags:
      outbox_.lend_tags(frame);
      return;
    case FrameKind::kCancel:
      inbox_.cancel(frame);
      return;
    case FrameKind::kDiscard:
      outbox_.discard(frame);
      return;
    case FrameKind::kCredit:
      outbox_.credit(frame);
      return;
    case FrameKind::kGoodbye:
      peer_finished_ = true;
      inbox_.complete();
      outbox_.control(Frame{.kind = FrameKind::kGoodbyeSeen});
      return;
    case FrameKind::kGoodbyeSeen:
      goodbye_seen_ = true;
      inbox_.complete();
      return;
    case FrameKind::kDropped:
      lose(DropReason{frame.end} == DropReason::kFinalize
               ? "its program has called MPI_Finalize before bluecomm.shutdown()"
               : "it dropped the link");
      return;
  }
  lose("it sent a frame of unknown kind");
}

bool MpiChannel::advance() {
  bool moved = inbox_.progress();
  if (dropped_) return moved;
  moved |= outbox_.progress();
  if (owes_goodbye()) {
    goodbye_sent_ = moved = true;
    outbox_.control(Frame{.kind = FrameKind::kGoodbye});
  }
  return moved;
}

bool MpiChannel::report(Receiver& receiver) {
  bool any = false;
  while (auto message = inbox_.take_arrived()) {
    any = true;
    receiver.on_message(peer_, std::move(message));
  }
  if (reported_) return any;
  if (peer_finished_) {
    reported_ = any = true;
    receiver.on_goodbye(peer_);
  } else if (lost_) {
    reported_ = any = true;
    receiver.on_lost(peer_, Status{Code::kPeerLost, *lost_, peer_});
  }
  return any;
}

bool MpiChannel::busy(bool has_room) const {
  if (inbox_.has_arrived() || (!reported_ && (peer_finished_ || lost_))) return true;
  if (dropped_) return false;
  if (outbox_.has_chunks() && has_room) return true;
  return owes_goodbye();
}

void MpiChannel::lose(std::string text) {
  lost_ = "lost the MPI link to rank " + std::to_string(peer_) + ": " + text;
  dropped_ = true;
  outbox_.lose();
  inbox_.lose();
}

void MpiChannel::forget() {
  reported_ = true;
  announce_drop(DropReason::kDropped);
  lose("this rank dropped it");
}

void MpiChannel::release_backend() {
  announce_drop(DropReason::kFinalize);
  on_finalized();
  inbox_.release_backend();
}

void MpiChannel::on_finalized() {
  if (dropped_) return;
  lose("the program has called MPI_Finalize; call bluecomm.shutdown() first");
}

void MpiChannel::close() { closing_ = true; }

bool MpiChannel::closed() const {
  if (!closing_) return false;
  const bool needs_answer = used_ && !peer_finished_;
  return dropped_ || goodbye_seen_ || (goodbye_sent_ && !needs_answer);
}

void MpiChannel::announce_drop(DropReason why) {
  if (!used_ || dropped_) return;
  Frame frame{.kind = FrameKind::kDropped};
  frame.end = static_cast<std::uint64_t>(why);
  outbox_.control(frame);
}

}  // namespace bluecomm::mpi
