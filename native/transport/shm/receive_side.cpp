#include "transport/shm/receive_side.h"

#include <algorithm>
#include <array>
#include <deque>
#include <string>
#include <utility>

#include "transport/shm/mapping.h"

namespace bluecomm::shm {
namespace {

// Consumption below this is told at the next poll, together with what follows it.
constexpr std::size_t kTellAtOnce = 64 << 10;
constexpr std::size_t kTellCreditAt = kEagerCredit / 4;

}  // namespace

// Owns its payload.
class EagerIncoming final : public Incoming {
 public:
  EagerIncoming(std::shared_ptr<ReceiveSide> side, const Header& header,
                std::uint64_t credit)
      : side_(std::move(side)), header_(header), credit_(credit) {
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
  void give_credit() { side_->give_credit(std::exchange(credit_, 0)); }

  const std::shared_ptr<ReceiveSide> side_;
  const Header header_;
  std::uint64_t credit_;
  bool accepted_ = false;
  std::size_t consumed_ = 0;
  std::array<std::byte, 128> few_;
  std::unique_ptr<std::byte[]> many_;
};

// Shows its payload where the sender has put it.
class LargeIncoming final : public Incoming {
 public:
  struct Chunk {
    std::shared_ptr<const Mapping> mapping;
    std::span<const std::byte> bytes;
    std::size_t end;  // payload offset
  };

  LargeIncoming(std::shared_ptr<ReceiveSide> side, std::uint64_t id,
                const Header& header)
      : side_(std::move(side)), id_(id), header_(header) {}

  ~LargeIncoming() override {
    if (dead_ || consumed_ == header_.nbytes) return;
    side_->answer(RecordType::kDiscard, id_);
    side_->large_.erase(id_);
  }

  const Header& header() const override { return header_; }
  std::size_t consumed() const override { return consumed_; }

  void accept(std::span<std::byte>) override {
    accepted_ = true;
    if (!in_place_) side_->answer(RecordType::kAccept, id_);
  }

  // Also of a cancelled message: what was shown stays in its place, though the bytes
  // may change. They are never counted as consumed.
  std::span<const std::byte> readable() const override {
    if (!accepted_ || chunks_.empty()) return {};
    const Chunk& chunk = chunks_.front();
    return chunk.bytes.last(chunk.end - consumed_);
  }

  void consume(std::size_t nbytes) override {
    if (nbytes == 0 || dead_) return;
    if (!side_->still_valid(*this)) {
      dead_ = true;
      side_->large_.erase(id_);
      side_->answer(RecordType::kDiscard, id_);
      return;
    }
    consumed_ += nbytes;
    side_->nbytes_ += nbytes;
    const bool chunk_is_done = chunks_.front().end == consumed_;
    if (chunk_is_done) chunks_.pop_front();
    if (chunk_is_done || consumed_ - told_ >= kTellAtOnce) {
      tell();
    } else if (!std::exchange(unflushed_, true)) {
      side_->unflushed_.push_back(id_);
    }
    if (consumed_ == header_.nbytes) side_->large_.erase(id_);
  }

  std::optional<SharedBytes> share() override {
    if (!in_place_ || dead_) return std::nullopt;
    const Chunk& whole = chunks_.front();
    auto owner = std::make_shared<WritablePart>(whole.mapping, whole.bytes);
    if (!owner->is_writable()) return std::nullopt;
    return SharedBytes{owner, owner->bytes()};
  }

  void tell() {
    unflushed_ = false;
    if (std::exchange(told_, consumed_) == consumed_) return;
    side_->answer(RecordType::kConsumed, id_, consumed_);
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

  void die() { dead_ = true; }
  bool in_place() const { return in_place_; }
  std::uint64_t id() const { return id_; }
  std::uint64_t live() const { return live_; }
  std::uint64_t missing() const { return header_.nbytes - received_; }

 private:
  const std::shared_ptr<ReceiveSide> side_;
  const std::uint64_t id_;
  const Header header_;
  bool accepted_ = false;
  bool in_place_ = false;
  bool dead_ = false;       // cancelled
  bool unflushed_ = false;  // in side_->unflushed_
  std::uint64_t live_ = 0;
  std::size_t received_ = 0;
  std::size_t consumed_ = 0;
  std::size_t told_ = 0;
  std::deque<Chunk> chunks_;
};

namespace {

// `length` bytes at `offset` of what the peer has made known.
std::span<const std::byte> checked_bytes(const Mapping& mapping, const Record& record,
                                         std::uint64_t length) {
  const std::span<const std::byte> all = mapping.bytes();
  if (record.offset > all.size() || length > all.size() - record.offset) {
    throw LinkError("it named " + std::to_string(length) + " bytes at offset " +
                    std::to_string(record.offset) + " of a segment of " +
                    std::to_string(all.size()));
  }
  return all.subspan(record.offset, length);
}

}  // namespace

void ReceiveSide::attach(Wire& wire) {
  wire_ = &wire;
  memory_ = wire.memory();
  inbound_ = &wire.inbound();
}

void ReceiveSide::detach() {
  wire_ = nullptr;
  sender_ = nullptr;
}

void ReceiveSide::answer(RecordType type, std::uint64_t id, std::uint64_t length) {
  if (wire_) sender_->control({.type = type, .id = id, .length = length});
}

void ReceiveSide::give_credit(std::uint64_t nbytes) {
  credit_ += nbytes;
  if (credit_ < kTellCreditAt) return;
  answer(RecordType::kCredit, 0, std::exchange(credit_, 0));
}

bool ReceiveSide::still_valid(const LargeIncoming& message) const {
  fence();
  if (inbound_->revoked.load() != 0) return false;
  return !message.in_place() || inbound_->live[message.live()].load() == message.id();
}

std::unique_ptr<Incoming> ReceiveSide::take_message(const Record& record) {
  if (record.id != last_id_ + 1 || record.nbytes < sizeof(Record) + sizeof(Header)) {
    throw LinkError("it sent message " + std::to_string(record.id) + " after " +
                    std::to_string(last_id_) + ", in " + std::to_string(record.nbytes) +
                    " bytes");
  }
  Header header;
  wire_->reader().copy(sizeof record, std::as_writable_bytes(std::span(&header, 1)));
  std::unique_ptr<Incoming> message = record.type == RecordType::kEager
                                          ? take_eager(record, header)
                                          : take_large(record, header);
  ++last_id_;
  ++messages_;
  return message;
}

std::unique_ptr<Incoming> ReceiveSide::take_eager(const Record& record,
                                                  const Header& header) {
  const std::size_t before = sizeof record + sizeof header;
  if (header.nbytes > kMaxRecord || record.nbytes != padded(before + header.nbytes) ||
      (record.length != 0 && record.length != header.nbytes)) {
    throw LinkError("it sent " + std::to_string(header.nbytes) +
                    " bytes in a record of " + std::to_string(record.nbytes));
  }
  auto message =
      std::make_unique<EagerIncoming>(shared_from_this(), header, record.length);
  wire_->reader().copy(before, message->memory());
  nbytes_ += header.nbytes;
  return message;
}

std::unique_ptr<Incoming> ReceiveSide::take_large(const Record& record,
                                                  const Header& header) {
  if (header.nbytes == 0 || record.live >= kLiveMessages) {
    throw LinkError("it announced " + std::to_string(header.nbytes) +
                    " bytes, alive at " + std::to_string(record.live));
  }
  auto message = std::make_unique<LargeIncoming>(shared_from_this(), record.id, header);
  auto mapping = record.segment != 0 ? wire_->segment(record.segment) : nullptr;
  if (mapping) {
    const auto bytes = checked_bytes(*mapping, record, header.nbytes);
    message->show_in_place(std::move(mapping), bytes, record.live);
  }
  large_[record.id] = message.get();
  return message;
}

void ReceiveSide::on_record(const Record& record) {
  if (record.id == 0 || record.id > last_id_) {
    throw LinkError("it sent a part of message " + std::to_string(record.id) + " of " +
                    std::to_string(last_id_));
  }
  const auto found = large_.find(record.id);
  if (found == large_.end()) return;  // consumed or discarded meanwhile
  if (record.type == RecordType::kChunk) {
    on_chunk(*found->second, record);
  } else {
    on_cancel(*found->second);
  }
}

void ReceiveSide::on_chunk(LargeIncoming& message, const Record& record) {
  const bool whole = record.length == message.missing();
  if (message.in_place() || record.length == 0 || record.length > message.missing() ||
      (!whole && record.length % kChunkAlignment != 0)) {
    throw LinkError("it sent a chunk of " + std::to_string(record.length) + " bytes, " +
                    std::to_string(message.missing()) + " were expected of message " +
                    std::to_string(record.id));
  }
  auto mapping = wire_->segment(record.segment);
  if (!mapping) {
    throw LinkError(
        "its segment " + std::to_string(record.segment) +
        " cannot be mapped; is a limit of open files or of memory reached?");
  }
  const auto bytes = checked_bytes(*mapping, record, record.length);
  message.add_chunk(std::move(mapping), bytes);
}

void ReceiveSide::on_cancel(LargeIncoming& message) {
  const std::uint64_t id = message.id();
  message.die();
  large_.erase(id);
  answer(RecordType::kDiscard, id);
}

bool ReceiveSide::flush() {
  if (unflushed_.empty()) return false;
  for (const std::uint64_t id : std::exchange(unflushed_, {})) {
    const auto found = large_.find(id);
    if (found != large_.end()) found->second->tell();
  }
  return true;
}

}  // namespace bluecomm::shm
