#include "transport/inproc/outbox.h"

#include <algorithm>
#include <utility>

namespace bluecomm::inproc {
namespace {

class InprocOutgoing final : public Outgoing {
 public:
  InprocOutgoing(std::shared_ptr<Hub> hub, std::shared_ptr<InprocMessage> message)
      : hub_(std::move(hub)), message_(std::move(message)) {}

  ~InprocOutgoing() override {
    const LockGuard lock(hub_->mutex);
    if (message_->released == message_->header.nbytes) return;
    message_->finished = true;
    message_->payload = {};
  }

  std::size_t released() const override {
    const LockGuard lock(hub_->mutex);
    return message_->released;
  }

  void grow(std::size_t nbytes) override {
    const LockGuard lock(hub_->mutex);
    message_->final_nbytes = nbytes;
    hub_->ring(message_->to);
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<InprocMessage> message_;
};

}  // namespace

Outbox::Outbox(std::shared_ptr<Hub> hub, int rank, int peer)
    : hub_(std::move(hub)), rank_(rank), peer_(peer) {}

std::shared_ptr<InprocMessage> Outbox::start(const Header& header,
                                             std::span<const std::byte> payload,
                                             PayloadKind kind) {
  auto message = std::make_shared<InprocMessage>(rank_, peer_, header, payload);
  if (kind == PayloadKind::kGrowing) message->final_nbytes = 0;
  const LockGuard lock(hub_->mutex);
  if (closing_ || hub_->link(rank_, peer_) == LinkState::kCut) return message;
  hub_->link(rank_, peer_) = LinkState::kUsed;
  if (kind == PayloadKind::kEager) {
    message->eager = true;
    message->copy.assign(payload.begin(), payload.end());
    message->payload = message->copy;
    message->released = payload.size();
  }
  ++messages_;
  nbytes_ += payload.size();
  std::erase_if(undelivered_, [](const auto& one) { return one->delivered(); });
  undelivered_.push_back(message);
  hub_->push(peer_, {InprocEvent::Type::kMessage, rank_, {}, message, {}});
  return message;
}

std::unique_ptr<Outgoing> Outbox::send(const Header& header,
                                       std::span<const std::byte> payload) {
  const PayloadKind kind = payload.size() <= hub_->options.eager_bytes
                               ? PayloadKind::kEager
                               : PayloadKind::kLarge;
  return std::make_unique<InprocOutgoing>(hub_, start(header, payload, kind));
}

std::unique_ptr<Outgoing> Outbox::send_growing(const Header& header,
                                               std::span<const std::byte> payload) {
  if (payload.size() <= hub_->options.eager_bytes) return nullptr;
  return std::make_unique<InprocOutgoing>(
      hub_, start(header, payload, PayloadKind::kGrowing));
}

void Outbox::post(const Header& header, std::span<const std::byte> payload) {
  start(header, payload, PayloadKind::kEager);
}

void Outbox::close() {
  if (std::exchange(closing_, true)) return;
  const LockGuard lock(hub_->mutex);
  if (hub_->link(rank_, peer_) != LinkState::kUsed) return;
  hub_->push(peer_, {InprocEvent::Type::kGoodbye, rank_, {}, nullptr, {}});
}

bool Outbox::idle() const {
  const LockGuard lock(hub_->mutex);
  return !hub_->queue(peer_).open ||
         std::all_of(undelivered_.begin(), undelivered_.end(),
                     [](const auto& one) { return one->delivered(); });
}

}  // namespace bluecomm::inproc
