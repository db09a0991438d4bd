// The receiving half of a RingChannel. An eager message is copied out of the ring at
// once. A large message shows memory of the sender: the payload itself, or chunks of
// staging memory. The channel calls the inbox from poll(), the engine calls the
// messages; both hold the progress lock.
#include "transport/shm/inbox.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "transport/shm/mapping.h"

namespace bluecomm::shm {
namespace {

// The inbox reports smaller amounts at the next poll, together with later ones.
constexpr std::size_t kReportAtOnce = 64 << 10;
constexpr std::size_t kCreditStep = kEagerCredit / 4;

}  // namespace

// An eager message, which owns its payload.
class EagerIncoming final : public Incoming {
 public:
  EagerIncoming(std::shared_ptr<Inbox> inbox, const Header& header,
                std::uint64_t credit)
      : inbox_(std::move(inbox)), header_(header), credit_(credit) {
    if (header_.nbytes > few_.size()) {
      many_ = std::make_unique_for_overwrite<std::byte[]>(header_.nbytes);
    }
  }
  ~EagerIncoming() override { give_credit(); }

  const Header& header() const override { return header_; }
  std::size_t consumed() const override { return consumed_; }
  void consume(std::size_t nbytes) override { consumed_ += nbytes; }

  void accept(std::span<std::byte>) override {
    accepted_ = true;
    give_credit();
  }

  std::span<const std::byte> readable() const override {
    if (!accepted_) return {};
    const std::byte* bytes = many_ ? many_.get() : few_.data();
    return {bytes + consumed_, header_.nbytes - consumed_};
  }

  std::span<std::byte> memory() {
    return {many_ ? many_.get() : few_.data(), header_.nbytes};
  }

 private:
  void give_credit() { inbox_->give_credit(std::exchange(credit_, 0)); }

  const std::shared_ptr<Inbox> inbox_;
  const Header header_;
  std::uint64_t credit_;
  bool accepted_ = false;
  std::size_t consumed_ = 0;
  std::array<std::byte, 128> few_;
  std::unique_ptr<std::byte[]> many_;
};

// A large message. It shows its payload where the sender has put it.
class LargeIncoming final : public Incoming {
 public:
  struct MappedChunk {
    std::shared_ptr<const Mapping> mapping;
    std::span<const std::byte> bytes;
    std::size_t end;  // offset in the payload
  };

  LargeIncoming(std::shared_ptr<Inbox> inbox, std::uint64_t id, const Header& header)
      : inbox_(std::move(inbox)), id_(id), header_(header) {}

  ~LargeIncoming() override {
    if (cancelled_ || consumed_ == header_.nbytes) return;
    inbox_->answer(FrameKind::kDiscard, id_);
    inbox_->large_.erase(id_);
  }

  const Header& header() const override { return header_; }
  std::size_t consumed() const override { return consumed_; }

  void accept(std::span<std::byte>) override {
    accepted_ = true;
    if (!in_place_) inbox_->answer(FrameKind::kGrant, id_);
  }

  // Works for a cancelled message, too: the bytes stay where they were shown, though
  // they may change, and consume() never counts them.
  std::span<const std::byte> readable() const override {
    if (!accepted_ || chunks_.empty()) return {};
    const MappedChunk& chunk = chunks_.front();
    return chunk.bytes.last(chunk.end - consumed_);
  }

  void consume(std::size_t nbytes) override {
    if (nbytes == 0 || cancelled_) return;
    if (!inbox_->still_valid(*this)) {
      cancelled_ = true;
      inbox_->large_.erase(id_);
      inbox_->answer(FrameKind::kDiscard, id_);
      return;
    }
    consumed_ += nbytes;
    inbox_->nbytes_ += nbytes;
    const bool chunk_is_done = chunks_.front().end == consumed_;
    if (chunk_is_done) chunks_.pop_front();
    if (chunk_is_done || consumed_ - reported_ >= kReportAtOnce) {
      report();
    } else if (!std::exchange(unflushed_, true)) {
      inbox_->unflushed_.push_back(id_);
    }
    if (consumed_ == header_.nbytes) inbox_->large_.erase(id_);
  }

  std::optional<SharedBytes> share() override {
    if (!in_place_ || cancelled_) return std::nullopt;
    const MappedChunk& whole = chunks_.front();
    auto owner = std::make_shared<WritablePart>(whole.mapping, whole.bytes);
    if (!owner->is_writable()) return std::nullopt;
    return SharedBytes{owner, owner->bytes()};
  }

  void report() {
    unflushed_ = false;
    if (std::exchange(reported_, consumed_) == consumed_) return;
    inbox_->answer(FrameKind::kConsumed, id_, consumed_);
  }

  void show_in_place(std::shared_ptr<const Mapping> mapping,
                     std::span<const std::byte> bytes, std::uint64_t live) {
    in_place_ = true;
    live_ = live;
    received_ = bytes.size();
    chunks_.push_back({std::move(mapping), bytes, bytes.size()});
  }

  void add_chunk(std::shared_ptr<const Mapping> mapping,
                 std::span<const std::byte> bytes) {
    received_ += bytes.size();
    chunks_.push_back({std::move(mapping), bytes, received_});
  }

  void mark_cancelled() { cancelled_ = true; }
  bool in_place() const { return in_place_; }
  std::uint64_t id() const { return id_; }
  std::uint64_t live() const { return live_; }
  std::uint64_t missing() const { return header_.nbytes - received_; }

 private:
  const std::shared_ptr<Inbox> inbox_;
  const std::uint64_t id_;
  const Header header_;
  bool accepted_ = false;
  bool in_place_ = false;
  bool cancelled_ = false;
  bool unflushed_ = false;  // is in inbox_->unflushed_
  std::uint64_t live_ = 0;
  std::size_t received_ = 0;
  std::size_t consumed_ = 0;
  std::size_t reported_ = 0;
  std::deque<MappedChunk> chunks_;
};

namespace {

// Returns `length` bytes at the offset that the frame names in a segment of the peer.
std::span<const std::byte> checked_bytes(const Mapping& mapping, const Frame& frame,
                                         std::uint64_t length) {
  const std::span<const std::byte> all = mapping.bytes();
  if (frame.offset > all.size() || length > all.size() - frame.offset) {
    throw ConnectionError("it named " + std::to_string(length) + " bytes at offset " +
                          std::to_string(frame.offset) + " of a segment of " +
                          std::to_string(all.size()));
  }
  return all.subspan(frame.offset, length);
}

}  // namespace

void Inbox::attach(RingConnection& connection) {
  connection_ = &connection;
  memory_ = connection.memory();
  inbound_ = &connection.inbound();
}

void Inbox::detach() {
  connection_ = nullptr;
  outbox_ = nullptr;
}

void Inbox::answer(FrameKind kind, std::uint64_t id, std::uint64_t length) {
  if (connection_) outbox_->control({.kind = kind, .id = id, .length = length});
}

void Inbox::give_credit(std::uint64_t nbytes) {
  credit_ += nbytes;
  if (credit_ < kCreditStep) return;
  answer(FrameKind::kCredit, 0, std::exchange(credit_, 0));
}

bool Inbox::still_valid(const LargeIncoming& message) const {
  fence();
  if (inbound_->revoked.load() != 0) return false;
  return !message.in_place() || inbound_->live[message.live()].load() == message.id();
}

std::unique_ptr<Incoming> Inbox::take_message(const Frame& frame) {
  if (frame.id != last_id_ + 1 || frame.nbytes < sizeof(Frame) + sizeof(Header)) {
    throw ConnectionError("it sent message " + std::to_string(frame.id) + " after " +
                          std::to_string(last_id_) + ", in " +
                          std::to_string(frame.nbytes) + " bytes");
  }
  Header header;
  connection_->reader().copy(sizeof frame,
                             std::as_writable_bytes(std::span(&header, 1)));
  std::unique_ptr<Incoming> message = frame.kind == FrameKind::kEager
                                          ? take_eager(frame, header)
                                          : take_large(frame, header);
  ++last_id_;
  ++messages_;
  return message;
}

std::unique_ptr<Incoming> Inbox::take_eager(const Frame& frame, const Header& header) {
  const std::size_t before = sizeof frame + sizeof header;
  if (header.nbytes > kMaxFrame || frame.nbytes != padded(before + header.nbytes) ||
      (frame.length != 0 && frame.length != header.nbytes)) {
    throw ConnectionError("it sent " + std::to_string(header.nbytes) +
                          " bytes in a frame of " + std::to_string(frame.nbytes));
  }
  auto message =
      std::make_unique<EagerIncoming>(shared_from_this(), header, frame.length);
  connection_->reader().copy(before, message->memory());
  nbytes_ += header.nbytes;
  return message;
}

std::unique_ptr<Incoming> Inbox::take_large(const Frame& frame, const Header& header) {
  if (header.nbytes == 0 || frame.live >= kLiveMessages) {
    throw ConnectionError("it announced " + std::to_string(header.nbytes) +
                          " bytes with live slot " + std::to_string(frame.live));
  }
  auto message = std::make_unique<LargeIncoming>(shared_from_this(), frame.id, header);
  auto mapping = frame.segment != 0 ? connection_->segment(frame.segment) : nullptr;
  if (mapping) {
    const auto bytes = checked_bytes(*mapping, frame, header.nbytes);
    message->show_in_place(std::move(mapping), bytes, frame.live);
  }
  large_[frame.id] = message.get();
  return message;
}

void Inbox::on_frame(const Frame& frame) {
  if (frame.id == 0 || frame.id > last_id_) {
    throw ConnectionError("it sent a part of message " + std::to_string(frame.id) +
                          ", but the last is " + std::to_string(last_id_));
  }
  const auto found = large_.find(frame.id);
  if (found == large_.end()) return;  // it has been consumed or discarded since
  if (frame.kind == FrameKind::kChunk) {
    on_chunk(*found->second, frame);
  } else {
    on_cancel(*found->second);
  }
}

void Inbox::on_chunk(LargeIncoming& message, const Frame& frame) {
  const bool whole = frame.length == message.missing();
  if (message.in_place() || frame.length == 0 || frame.length > message.missing() ||
      (!whole && frame.length % kChunkAlignment != 0)) {
    throw ConnectionError("it sent a chunk of " + std::to_string(frame.length) +
                          " bytes, " + std::to_string(message.missing()) +
                          " were expected of message " + std::to_string(frame.id));
  }
  auto mapping = connection_->segment(frame.segment);
  if (!mapping) {
    throw ConnectionError(
        "its segment " + std::to_string(frame.segment) +
        " cannot be mapped; has a limit on open files or memory been reached?");
  }
  const auto bytes = checked_bytes(*mapping, frame, frame.length);
  message.add_chunk(std::move(mapping), bytes);
}

void Inbox::on_cancel(LargeIncoming& message) {
  const std::uint64_t id = message.id();
  message.mark_cancelled();
  large_.erase(id);
  answer(FrameKind::kDiscard, id);
}

bool Inbox::flush() {
  if (unflushed_.empty()) return false;
  for (const std::uint64_t id : std::exchange(unflushed_, {})) {
    const auto found = large_.find(id);
    if (found != large_.end()) found->second->report();
  }
  return true;
}

}  // namespace bluecomm::shm
