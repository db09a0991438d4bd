#include "transport/inproc/inbox.h"

#include <algorithm>
#include <optional>
#include <span>
#include <utility>

namespace bluecomm::inproc {

class Reception {
 public:
  Reception(std::shared_ptr<Hub> hub, std::shared_ptr<InprocMessage> message)
      : hub_(std::move(hub)), message_(std::move(message)) {}

  Hub& hub() const { return *hub_; }
  InprocMessage& message() const { return *message_; }
  std::size_t nbytes() const { return message_->header.nbytes; }
  std::size_t consumed() const { return consumed_; }

  void accept(std::span<std::byte> into) {
    accepted_ = true;
    into_ = into;
  }
  void stop() { accepted_ = false; }

  std::span<const std::byte> readable() const {
    const std::size_t n = copied_ - consumed_;
    if (n == 0) return {};
    if (!into_.empty()) return into_.subspan(consumed_, n);
    return std::span(window_).subspan(consumed_ - window_begin_, n);
  }
  void consume(std::size_t nbytes) { consumed_ += nbytes; }

  // The caller holds the hub's mutex.
  bool can_copy() const {
    hub_->mutex.assert_held();
    const bool wanted = accepted_ && copied_ < message_->final_nbytes &&
                        (!into_.empty() || consumed_ == copied_);
    const bool cut = hub_->link(message_->from, message_->to) == LinkState::kCut;
    return wanted && !message_->finished && (message_->eager || !cut);
  }

  // Copies the next chunk if it can. Returns the chunk's length, or 0.
  std::size_t copy_chunk() {
    const LockGuard lock(hub_->mutex);
    if (!can_copy()) return 0;
    const std::size_t n =
        std::min(hub_->options.chunk_bytes, message_->final_nbytes - copied_);
    std::byte* to = into_.data() + copied_;
    if (into_.empty()) {
      window_.resize(n);
      window_begin_ = copied_;
      to = window_.data();
    }
    std::copy_n(message_->payload.data() + copied_, n, to);
    copied_ += n;
    if (!message_->eager) {
      message_->released = copied_;
      hub_->ring(message_->from);
    }
    return n;
  }

 private:
  const std::shared_ptr<Hub> hub_;
  const std::shared_ptr<InprocMessage> message_;
  bool accepted_ = false;
  std::span<std::byte> into_;      // the receiver's memory, if it has supplied any
  std::vector<std::byte> window_;  // otherwise the current chunk
  std::size_t window_begin_ = 0;   // payload offset of window_[0]
  std::size_t copied_ = 0;         // [0, copied_) of the payload has been copied
  std::size_t consumed_ = 0;
};

namespace {

class InprocIncoming final : public Incoming {
 public:
  explicit InprocIncoming(std::shared_ptr<Reception> reception)
      : reception_(std::move(reception)) {}

  ~InprocIncoming() override {
    reception_->stop();
    InprocMessage& message = reception_->message();
    Hub& hub = reception_->hub();
    const LockGuard lock(hub.mutex);
    if (message.finished) return;
    message.finished = true;
    message.released = message.header.nbytes;
    hub.ring(message.from);
  }

  const Header& header() const override { return reception_->message().header; }
  void accept(std::span<std::byte> into) override { reception_->accept(into); }
  std::span<const std::byte> readable() const override {
    return reception_->readable();
  }
  void consume(std::size_t nbytes) override { reception_->consume(nbytes); }
  std::size_t consumed() const override { return reception_->consumed(); }

  std::optional<SharedBytes> share() override {
    const InprocMessage& message = reception_->message();
    const LockGuard lock(reception_->hub().mutex);
    if (message.eager || message.finished) return std::nullopt;
    auto* const bytes = const_cast<std::byte*>(message.payload.data());
    return SharedBytes{nullptr, {bytes, message.payload.size()}};
  }

 private:
  const std::shared_ptr<Reception> reception_;
};

}  // namespace

Inbox::Inbox(std::shared_ptr<Hub> hub) : hub_(std::move(hub)) {}

Inbox::~Inbox() = default;

std::unique_ptr<Incoming> Inbox::take(std::shared_ptr<InprocMessage> message) {
  auto reception = std::make_shared<Reception>(hub_, std::move(message));
  if (reception->nbytes() > 0) receptions_.push_back(reception);  // else no payload
  ++messages_;
  return std::make_unique<InprocIncoming>(std::move(reception));
}

bool Inbox::poll() {
  bool changed = false;
  for (const auto& reception : receptions_) {
    const std::size_t n = reception->copy_chunk();
    nbytes_ += n;
    changed |= n > 0;
  }
  // A reception whose Incoming has been destroyed is referenced by the inbox only.
  std::erase_if(receptions_, [](const auto& one) { return one.use_count() == 1; });
  return changed;
}

bool Inbox::can_copy() const {
  return std::any_of(receptions_.begin(), receptions_.end(),
                     [](const auto& reception) { return reception->can_copy(); });
}

}  // namespace bluecomm::inproc
