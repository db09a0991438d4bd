// A RingChannel: sends through its outbox, takes frames off the inbound ring and hands
// them to outbox and inbox, and notices the end of the connection. The shm transport
// calls poll() from its own poll(), under the progress lock. A peer may write anything
// into the shared memory: a malformed frame throws ConnectionError, and poll() turns
// that into the loss of this one peer.
#include "transport/shm/channel.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace bluecomm::shm {
namespace {

// An Outgoing that was complete from the start, or never will be.
class SettledOutgoing final : public Outgoing {
 public:
  explicit SettledOutgoing(std::size_t released) : released_(released) {}
  std::size_t released() const override { return released_; }

 private:
  const std::size_t released_;
};

class ShmOutgoing final : public Outgoing {
 public:
  ShmOutgoing(std::shared_ptr<Outbox> outbox, std::shared_ptr<SentMessage> message)
      : outbox_(std::move(outbox)), message_(std::move(message)) {}
  ~ShmOutgoing() override { outbox_->cancel(*message_); }
  std::size_t released() const override { return message_->released; }
  void grow(std::size_t nbytes) override { outbox_->grow(*message_, nbytes); }

 private:
  const std::shared_ptr<Outbox> outbox_;
  const std::shared_ptr<SentMessage> message_;
};

}  // namespace

RingChannel::RingChannel(std::shared_ptr<SharedState> shared, int peer,
                         std::string offer)
    : shared_(std::move(shared)),
      peer_(peer),
      offer_(std::move(offer)),
      outbox_(std::make_shared<Outbox>(shared_)),
      inbox_(std::make_shared<Inbox>(*outbox_)) {}

RingChannel::~RingChannel() { disconnect(); }

std::unique_ptr<Outgoing> RingChannel::send(const Header& header,
                                            std::span<const std::byte> payload) {
  return send_message(header, payload, nullptr);
}

std::unique_ptr<Outgoing> RingChannel::send_to_many(const Header& header,
                                                    std::span<const std::byte> payload,
                                                    std::shared_ptr<void>& copies,
                                                    Lease&) {
  return send_message(header, payload, &copies);
}

std::unique_ptr<Outgoing> RingChannel::send_message(const Header& sent,
                                                    std::span<const std::byte> payload,
                                                    std::shared_ptr<void>* copies) {
  if (finished_ || closing_ || forgotten_) return std::make_unique<SettledOutgoing>(0);
  Header header = sent;
  header.nbytes = payload.size();
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  if (outbox_->send_now(header, payload, false)) {
    return std::make_unique<SettledOutgoing>(payload.size());
  }
  auto message = std::make_shared<SentMessage>();
  message->header = header;
  message->payload = payload;
  if (copies != nullptr) {
    if (!*copies) *copies = std::make_shared<StagedCopies>();
    message->copies = std::static_pointer_cast<StagedCopies>(*copies);
  }
  outbox_->enqueue(message);
  return std::make_unique<ShmOutgoing>(outbox_, std::move(message));
}

std::unique_ptr<Outgoing> RingChannel::send_growing(
    const Header& sent, std::span<const std::byte> payload) {
  const ShmOptions& options = shared_->options;
  if (payload.size() <= options.eager_bytes || options.memory->find(payload)) {
    return nullptr;
  }
  if (finished_ || closing_ || forgotten_) return std::make_unique<SettledOutgoing>(0);
  auto message = std::make_shared<SentMessage>();
  message->header = sent;
  message->header.nbytes = payload.size();
  message->payload = payload;
  message->is_growing = true;
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  outbox_->enqueue(message);
  return std::make_unique<ShmOutgoing>(outbox_, std::move(message));
}

void RingChannel::post(const Header& sent, std::span<const std::byte> payload) {
  if (finished_ || closing_ || forgotten_) return;
  Header header = sent;
  header.nbytes = payload.size();
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  if (outbox_->send_now(header, payload, true)) return;
  auto message = std::make_shared<SentMessage>();
  message->header = header;
  message->posted.assign(payload.begin(), payload.end());
  message->payload = message->posted;
  message->is_post = true;
  outbox_->enqueue(std::move(message));
}

ChannelStats RingChannel::stats() const {
  ChannelStats stats = stats_;
  stats.messages_received = inbox_->messages();
  stats.bytes_received = inbox_->nbytes();
  return stats;
}

bool RingChannel::beat() {
  if (!connection_) return false;
  connection_->outbound().beats.fetch_add(1, std::memory_order_relaxed);
  return true;
}

std::uint64_t RingChannel::signs_of_life() const {
  if (!connection_) return inbox_->messages();
  return inbox_->messages() +
         connection_->inbound().beats.load(std::memory_order_relaxed);
}

void RingChannel::attach(std::unique_ptr<RingConnection> connection) {
  connection_ = std::move(connection);
  outbox_->attach(*connection_);
  inbox_->attach(*connection_);
  if (closing_) send_goodbye();
}

bool RingChannel::poll(Receiver& receiver) {
  if (!connection_) return false;
  bool changed = false;
  try {
    changed |= drain(receiver);
    changed |= inbox_->flush();
    changed |= outbox_->progress();
    connection_->forget_gone_segments(
        [this](const Frame& gone) { outbox_->control(gone); });
    if (!connection_->error().empty()) throw ConnectionError(connection_->error());
    // Messages that the peer sent before its end are reported first.
    const bool is_end = connection_->ended() || forgotten_;
    if (!is_end || connection_->reader().available() > 0) return changed;
  } catch (const ConnectionError& error) {
    lose(receiver, error.what());
    return true;
  } catch (const std::system_error& error) {
    lose(receiver, error.what());
    return true;
  }
  if (peer_finished_ || forgotten_) {
    disconnect();
  } else {
    lose(receiver, "its process has ended or has dropped the connection");
  }
  return true;
}

bool RingChannel::drain(Receiver& receiver) {
  std::size_t drained = 0;
  // The peer may keep writing, so one call takes only the bytes that were available
  // when it began.
  const std::size_t nbytes = connection_->reader().available();
  while (drained < nbytes && connection_) {
    Frame frame;
    if (nbytes - drained < sizeof frame) throw ConnectionError("it sent half a frame");
    connection_->reader().copy(0, std::as_writable_bytes(std::span(&frame, 1)));
    if (frame.nbytes < sizeof frame || frame.nbytes % 16 != 0 ||
        frame.nbytes > nbytes - drained) {
      throw ConnectionError("it sent a frame of " + std::to_string(frame.nbytes) +
                            " bytes with " + std::to_string(nbytes - drained) +
                            " available");
    }
    drained += frame.nbytes;
    dispatch(frame, receiver);
  }
  return drained > 0;
}

// Gives the frame back to the ring before it calls the receiver.
void RingChannel::dispatch(const Frame& frame, Receiver& receiver) {
  std::unique_ptr<Incoming> message;
  bool is_goodbye = false;
  switch (frame.kind) {
    case FrameKind::kEager:
    case FrameKind::kLarge:
      message = inbox_->take_message(frame);
      break;
    case FrameKind::kChunk:
    case FrameKind::kCancel:
      inbox_->on_frame(frame);
      break;
    case FrameKind::kGrant:
    case FrameKind::kConsumed:
    case FrameKind::kDiscard:
    case FrameKind::kCredit:
      outbox_->on_frame(frame);
      break;
    case FrameKind::kSegmentGone:
      connection_->drop_segment(frame.segment);
      break;
    case FrameKind::kGoodbye:
      is_goodbye = !std::exchange(peer_finished_, true);
      break;
    default:
      throw ConnectionError("it sent a frame of unknown type " +
                            std::to_string(static_cast<std::uint32_t>(frame.kind)));
  }
  if (connection_->reader().advance(frame.nbytes)) connection_->ring();
  if (message) receiver.on_message(peer_, std::move(message));
  if (is_goodbye && !forgotten_) receiver.on_goodbye(peer_);
}

bool RingChannel::busy() {
  if (!connection_) return false;
  if (inbox_->has_unflushed() || connection_->ended() || forgotten_) return true;
  if (closing_ && !connection_->drained()) {
    connection_->wait_for_space();
    if (connection_->drained()) return true;
  }
  if (outbox_->can_progress() || !connection_->error().empty()) return true;
  try {
    return connection_->reader().available() > 0;
  } catch (const ConnectionError&) {
    return true;
  }
}

void RingChannel::lose(Receiver& receiver, const std::string& text) {
  const std::string pid = connection_
                              ? " (pid " + std::to_string(connection_->peer_pid()) + ")"
                              : std::string();
  const bool silent = forgotten_ || peer_finished_;
  disconnect();
  if (silent) return;
  receiver.on_lost(
      peer_, {Code::kPeerLost,
              "shm link of rank " + std::to_string(shared_->options.rank) +
                  " to rank " + std::to_string(peer_) + pid + " is broken: " + text,
              peer_});
}

void RingChannel::forget() {
  forgotten_ = true;
  if (!connection_) disconnect();
}

void RingChannel::close() {
  closing_ = true;
  if (connection_) send_goodbye();
}

void RingChannel::send_goodbye() {
  if (std::exchange(goodbye_sent_, true)) return;
  outbox_->control({.kind = FrameKind::kGoodbye});
}

bool RingChannel::closed() {
  if (finished_) return true;
  if (!connection_) return !outbox_->has_queue();
  return goodbye_sent_ && outbox_->idle() && connection_->drained();
}

void RingChannel::disconnect() {
  finished_ = true;
  inbox_->detach();
  if (!connection_) {
    outbox_->detach();
    return;
  }
  // The peer must treat what it reads as invalid before the memory may change.
  const std::unique_ptr<RingConnection> connection =
      std::exchange(connection_, nullptr);
  connection->revoke();
  outbox_->detach();
}

void RingChannel::abandon_after_fork() noexcept {
  finished_ = true;
  if (connection_) connection_->abandon_after_fork();
  connection_.reset();
  inbox_->detach();
  outbox_->abandon_after_fork();
}

}  // namespace bluecomm::shm
