#include "transport/tcp/outbox.h"

#include <algorithm>

#include "transport/tcp/streams.h"

namespace bluecomm::tcp {
namespace {

std::span<const std::byte> bytes_of(const Header& header) {
  return std::as_bytes(std::span(&header, 1));
}

}  // namespace

TcpOutgoing::~TcpOutgoing() {
  if (outbox_ != nullptr) outbox_->cancel(*this);
}

std::unique_ptr<Outgoing> Outbox::send(const Header& header,
                                       std::span<const std::byte> payload) {
  const std::size_t cost = sizeof(Header) + payload.size();
  if (payload.empty()) {
    announce(header, payload, {}, 0);
    return std::make_unique<TcpOutgoing>(0);
  }
  if (payload.size() <= eager_bytes_ && charged_ + cost <= kEagerCredit) {
    charged_ += cost;
    announce(header, payload, payload, kCharged);
    return std::make_unique<TcpOutgoing>(payload.size());
  }
  auto outgoing = std::make_unique<TcpOutgoing>(*this, next_message_, payload);
  waiting_.emplace(next_message_, outgoing.get());
  announce(header, payload, {}, 0);
  return outgoing;
}

void Outbox::post(const Header& header, std::span<const std::byte> payload) {
  announce(header, payload, payload, 0);
}

void Outbox::announce(const Header& header, std::span<const std::byte> payload,
                      std::span<const std::byte> eager, std::uint8_t flags) {
  Header sent = header;
  sent.nbytes = payload.size();
  Frame frame{.kind = FrameKind::kMessage, .flags = flags};
  frame.length = static_cast<std::uint32_t>(sizeof(Header) + eager.size());
  frame.message = next_message_++;
  streams_.queue(frame, bytes_of(sent), eager);
  ++stats_.messages_sent;
  stats_.bytes_sent += eager.size();
}

std::optional<Chunk> Outbox::next_chunk(std::size_t max_nbytes) const {
  if (ready_.empty()) return std::nullopt;
  const TcpOutgoing& outgoing = *ready_.front();
  const std::size_t begin = outgoing.started_;
  // Cut at multiples of the chunk size, hence never across a segment.
  const std::size_t border = begin / max_nbytes * max_nbytes + max_nbytes;
  const std::size_t end = std::min(border, outgoing.granted_);
  return Chunk{outgoing.message_, begin, outgoing.payload_.subspan(begin, end - begin)};
}

void Outbox::start(const Chunk& chunk) {
  TcpOutgoing& outgoing = *ready_.front();
  outgoing.started_ += chunk.bytes.size();
  stats_.bytes_sent += chunk.bytes.size();
  if (outgoing.started_ == outgoing.granted_) ready_.pop_front();
}

void Outbox::finish(std::uint64_t message, std::size_t offset, std::size_t nbytes) {
  const auto found = waiting_.find(message);
  if (found == waiting_.end()) return;
  TcpOutgoing& outgoing = *found->second;
  outgoing.written_.add(offset, offset + nbytes);
  outgoing.released_ = outgoing.written_.length();
  if (outgoing.released_ == outgoing.payload_.size()) forget(outgoing);
}

std::string_view Outbox::grant(const Frame& frame) {
  if (frame.message >= next_message_) return "room for a message never sent";
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return {};  // cancelled here meanwhile
  TcpOutgoing& outgoing = *found->second;
  if (frame.offset > outgoing.payload_.size() || frame.offset < outgoing.granted_) {
    return "room for more than was announced";
  }
  const bool was_ready = outgoing.started_ < outgoing.granted_;
  outgoing.granted_ = frame.offset;
  if (!was_ready && outgoing.started_ < outgoing.granted_) ready_.push_back(&outgoing);
  return {};
}

std::string_view Outbox::discard(const Frame& frame) {
  if (frame.message >= next_message_) return "refusal of a message never sent";
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return {};
  TcpOutgoing& outgoing = *found->second;
  cancel(outgoing);
  outgoing.released_ = outgoing.payload_.size();
  return {};
}

std::string_view Outbox::credit(const Frame& frame) {
  if (frame.offset > charged_) return "more credit than was used";
  charged_ -= frame.offset;
  return {};
}

void Outbox::cancel(TcpOutgoing& outgoing) {
  streams_.keep_chunks(outgoing.message_);
  forget(outgoing);
}

void Outbox::forget(TcpOutgoing& outgoing) {
  std::erase(ready_, &outgoing);
  waiting_.erase(outgoing.message_);
  outgoing.outbox_ = nullptr;
}

void Outbox::lose() {
  for (const auto& [message, outgoing] : waiting_) outgoing->outbox_ = nullptr;
  waiting_.clear();
  ready_.clear();
}

}  // namespace bluecomm::tcp
