#include "transport/shm/link.h"

#include <algorithm>
#include <system_error>
#include <utility>

namespace bluecomm::shm {
namespace {

// An Outgoing that was complete at once, or that never will be.
class SettledOutgoing final : public Outgoing {
 public:
  explicit SettledOutgoing(std::size_t released) : released_(released) {}
  std::size_t released() const override { return released_; }

 private:
  const std::size_t released_;
};

class ShmOutgoing final : public Outgoing {
 public:
  ShmOutgoing(std::shared_ptr<SendSide> side, std::shared_ptr<Sent> message)
      : side_(std::move(side)), message_(std::move(message)) {}
  ~ShmOutgoing() override { side_->cancel(*message_); }
  std::size_t released() const override { return message_->released; }

 private:
  const std::shared_ptr<SendSide> side_;
  const std::shared_ptr<Sent> message_;
};

}  // namespace

Link::Link(std::shared_ptr<Shared> shared, int peer, std::string offer)
    : shared_(std::move(shared)),
      peer_(peer),
      offer_(std::move(offer)),
      sender_(std::make_shared<SendSide>(shared_)),
      receiver_(std::make_shared<ReceiveSide>(*sender_)) {}

Link::~Link() { end(); }

std::unique_ptr<Outgoing> Link::send(const Header& header,
                                     std::span<const std::byte> payload) {
  return send_message(header, payload, nullptr);
}

std::unique_ptr<Outgoing> Link::send_to_many(const Header& header,
                                             std::span<const std::byte> payload,
                                             std::shared_ptr<void>& copies, Lease&) {
  return send_message(header, payload, &copies);
}

std::unique_ptr<Outgoing> Link::send_message(const Header& sent,
                                             std::span<const std::byte> payload,
                                             std::shared_ptr<void>* copies) {
  if (over_ || closing_ || forgotten_) return std::make_unique<SettledOutgoing>(0);
  Header header = sent;
  header.nbytes = payload.size();
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  if (sender_->send_now(header, payload, false)) {
    return std::make_unique<SettledOutgoing>(payload.size());
  }
  auto message = std::make_shared<Sent>();
  message->header = header;
  message->payload = payload;
  if (copies != nullptr) {
    if (!*copies) *copies = std::make_shared<Copies>();
    message->copies = std::static_pointer_cast<Copies>(*copies);
  }
  sender_->enqueue(message);
  return std::make_unique<ShmOutgoing>(sender_, std::move(message));
}

void Link::post(const Header& sent, std::span<const std::byte> payload) {
  if (over_ || closing_ || forgotten_) return;
  Header header = sent;
  header.nbytes = payload.size();
  ++stats_.messages_sent;
  stats_.bytes_sent += payload.size();
  if (sender_->send_now(header, payload, true)) return;
  auto message = std::make_shared<Sent>();
  message->header = header;
  message->posted.assign(payload.begin(), payload.end());
  message->payload = message->posted;
  message->is_post = true;
  sender_->enqueue(std::move(message));
}

ChannelStats Link::stats() const {
  ChannelStats stats = stats_;
  stats.messages_received = receiver_->messages();
  stats.bytes_received = receiver_->nbytes();
  return stats;
}

void Link::attach(std::unique_ptr<Wire> wire) {
  wire_ = std::move(wire);
  sender_->attach(*wire_);
  receiver_->attach(*wire_);
  if (closing_) say_goodbye();
}

bool Link::poll(Receiver& receiver) {
  if (!wire_) return false;
  bool changed = false;
  try {
    changed |= drain(receiver);
    changed |= receiver_->flush();
    changed |= sender_->pump();
    wire_->forget_gone_segments([this](const Record& gone) { sender_->control(gone); });
    if (!wire_->error().empty()) throw LinkError(wire_->error());
    // What the peer has sent before its end comes first.
    const bool is_end = wire_->ended() || forgotten_;
    if (!is_end || wire_->reader().available() > 0) return changed;
  } catch (const LinkError& error) {
    fail(receiver, error.what());
    return true;
  } catch (const std::system_error& error) {
    fail(receiver, error.what());
    return true;
  }
  if (heard_goodbye_ || forgotten_) {
    end();
  } else {
    fail(receiver, "its process has ended or has dropped the connection");
  }
  return true;
}

bool Link::drain(Receiver& receiver) {
  std::size_t drained = 0;
  // The peer may go on writing, so one pass takes no more than was there at its start.
  const std::size_t nbytes = wire_->reader().available();
  while (drained < nbytes && wire_) {
    Record record;
    if (nbytes - drained < sizeof record) throw LinkError("it sent half a record");
    wire_->reader().copy(0, std::as_writable_bytes(std::span(&record, 1)));
    if (record.nbytes < sizeof record || record.nbytes % 16 != 0 ||
        record.nbytes > nbytes - drained) {
      throw LinkError("it sent a record of " + std::to_string(record.nbytes) +
                      " bytes where " + std::to_string(nbytes - drained) + " were");
    }
    drained += record.nbytes;
    dispatch(record, receiver);
  }
  return drained > 0;
}

// Takes the record off the ring before anybody else is called.
void Link::dispatch(const Record& record, Receiver& receiver) {
  std::unique_ptr<Incoming> message;
  bool is_goodbye = false;
  switch (record.type) {
    case RecordType::kEager:
    case RecordType::kLarge:
      message = receiver_->take_message(record);
      break;
    case RecordType::kChunk:
    case RecordType::kCancel:
      receiver_->on_record(record);
      break;
    case RecordType::kAccept:
    case RecordType::kConsumed:
    case RecordType::kDiscard:
    case RecordType::kCredit:
      sender_->on_record(record);
      break;
    case RecordType::kSegmentGone:
      wire_->drop_segment(record.segment);
      break;
    case RecordType::kGoodbye:
      is_goodbye = !std::exchange(heard_goodbye_, true);
      break;
    default:
      throw LinkError("it sent a record of unknown type " +
                      std::to_string(static_cast<std::uint32_t>(record.type)));
  }
  if (wire_->reader().advance(record.nbytes)) wire_->ring();
  if (message) receiver.on_message(peer_, std::move(message));
  if (is_goodbye && !forgotten_) receiver.on_goodbye(peer_);
}

bool Link::has_work() {
  if (!wire_) return false;
  if (receiver_->has_unflushed() || wire_->ended() || forgotten_) return true;
  if (closing_ && !wire_->drained()) {
    wire_->wait_for_space();
    if (wire_->drained()) return true;
  }
  if (sender_->can_pump() || !wire_->error().empty()) return true;
  try {
    return wire_->reader().available() > 0;
  } catch (const LinkError&) {
    return true;
  }
}

void Link::fail(Receiver& receiver, const std::string& text) {
  const std::string pid =
      wire_ ? " (pid " + std::to_string(wire_->peer_pid()) + ")" : std::string();
  const bool silent = forgotten_ || heard_goodbye_;
  end();
  if (silent) return;
  receiver.on_lost(
      peer_, {Code::kPeerLost,
              "shm link of rank " + std::to_string(shared_->options.rank) +
                  " to rank " + std::to_string(peer_) + pid + " is broken: " + text,
              peer_});
}

void Link::forget() {
  forgotten_ = true;
  if (!wire_) end();
}

void Link::close() {
  closing_ = true;
  if (wire_) say_goodbye();
}

void Link::say_goodbye() {
  if (std::exchange(said_goodbye_, true)) return;
  sender_->control({.type = RecordType::kGoodbye});
}

bool Link::closed() {
  if (over_) return true;
  if (!wire_) return !sender_->has_queue();
  return said_goodbye_ && sender_->idle() && wire_->drained();
}

void Link::end() {
  over_ = true;
  receiver_->detach();
  if (!wire_) {
    sender_->detach();
    return;
  }
  // Only when the peer can count no longer what it reads, memory may change.
  const std::unique_ptr<Wire> wire = std::exchange(wire_, nullptr);
  wire->revoke();
  sender_->detach();
}

void Link::abandon() noexcept {
  over_ = true;
  if (wire_) wire_->abandon();
  wire_.reset();
  receiver_->detach();
  sender_->abandon();
}

}  // namespace bluecomm::shm
