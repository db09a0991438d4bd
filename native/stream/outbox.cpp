// The sending side of a link. The link calls it on the thread that calls
// Link::progress(), and its owner calls send() and post() on the same thread.
//
// A short message goes eagerly with its kMessage frame, as long as the credit lasts. A
// longer one is announced by its head and waits for a grant, unless the peer has
// announced a buffer for it, or the credit suffices for an unsolicited message. Then
// next_chunk() hands its chunks to the streams.
#include "stream/outbox.h"

#include <algorithm>

#include "stream/streams.h"

namespace bluecomm::stream {

SentMessage::~SentMessage() {
  if (outbox_ != nullptr) outbox_->cancel(*this);
}

void SentMessage::grow(std::size_t nbytes) {
  if (outbox_ != nullptr) outbox_->extend(*this, granted_, nbytes);
}

void Outbox::send(SentMessage& message, std::span<const std::byte> head,
                  std::span<const std::byte> payload) {
  const std::size_t cost = head.size() + payload.size();
  if (payload.empty()) return announce(head, 0, {}, 0);
  if (payload.size() <= settings_.eager_bytes && has_credit(cost)) {
    charged_ += cost;
    announce(head, payload.size(), payload, kCharged);
    message.released_ = payload.size();
    return;
  }
  wait_for_grant(message, head, payload, payload.size());
}

void Outbox::send_growing(SentMessage& message, std::span<const std::byte> head,
                          std::span<const std::byte> payload) {
  message.is_growing_ = true;
  wait_for_grant(message, head, payload, 0);
}

void Outbox::wait_for_grant(SentMessage& message, std::span<const std::byte> head,
                            std::span<const std::byte> payload,
                            std::size_t final_nbytes) {
  message.outbox_ = this;
  message.message_ = next_message_;
  message.payload_ = payload;
  message.final_ = final_nbytes;
  waiting_.emplace(next_message_, &message);
  // If the announced buffer is too small, the receiver will decide after it has read
  // the head.
  const bool is_expected = take_expected(next_message_) >= payload.size();
  const std::size_t cost = head.size() + payload.size();
  message.is_unsolicited_ = !is_expected && !message.is_growing_ && single_stream_ &&
                            has_credit(cost) &&
                            payload.size() <= settings_.unsolicited_bytes;
  if (message.is_unsolicited_) charged_ += cost;
  announce(head, payload.size(), {}, message.is_unsolicited_ ? kCharged : 0);
  if (is_expected || message.is_unsolicited_) {
    extend(message, payload.size(), message.final_);
  }
}

void Outbox::post(std::span<const std::byte> head, std::span<const std::byte> payload) {
  announce(head, payload.size(), payload, 0);
}

void Outbox::announce(std::span<const std::byte> head, std::size_t nbytes,
                      std::span<const std::byte> eager, std::uint8_t flags) {
  Frame frame{.kind = FrameKind::kMessage, .flags = flags};
  frame.length = static_cast<std::uint32_t>(head.size() + eager.size());
  frame.message = next_message_++;
  frame.offset = nbytes;
  streams_.queue_on_first(frame, head, eager);
  ++stats_.messages;
  stats_.bytes += eager.size();
}

std::optional<Chunk> Outbox::next_chunk(std::size_t max_nbytes) const {
  if (ready_.empty()) return std::nullopt;
  const SentMessage& message = *ready_[turn()];
  const std::size_t begin = message.started_;
  if (message.is_growing_) max_nbytes = std::min(max_nbytes, kSmallChunk);
  // Cut at multiples of the chunk size, so that no chunk crosses a segment border.
  const std::size_t border = begin / max_nbytes * max_nbytes + max_nbytes;
  const std::size_t end = std::min(border, message.sendable());
  return Chunk{message.message_, begin, message.payload_.subspan(begin, end - begin)};
}

std::size_t Outbox::pending() const {
  std::size_t nbytes = 0;
  for (const SentMessage* one : ready_) nbytes += one->sendable() - one->started_;
  return nbytes;
}

void Outbox::start(const Chunk& chunk) {
  const std::size_t index = turn();
  SentMessage& message = *ready_[index];
  message.started_ += chunk.bytes.size();
  stats_.bytes += chunk.bytes.size();
  ++chunks_started_;
  others_turn_ = !others_turn_;
  if (index == 0 && message.started_ < message.sendable()) return;
  ready_.erase(ready_.begin() + static_cast<std::ptrdiff_t>(index));
  if (message.started_ < message.sendable()) ready_.push_back(&message);
}

void Outbox::finish(std::uint64_t message, std::size_t offset, std::size_t nbytes) {
  const auto found = waiting_.find(message);
  if (found == waiting_.end()) return;
  SentMessage& sent = *found->second;
  sent.written_.add(offset, offset + nbytes);
  sent.released_ = sent.written_.length();
  if (sent.released_ == sent.payload_.size()) forget(sent);
}

std::string_view Outbox::grant(const Frame& frame) {
  if (frame.message >= next_message_) return "room for a message never sent";
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return {};  // the message was cancelled here
  SentMessage& message = *found->second;
  if (frame.offset > message.payload_.size() || frame.offset < message.granted_) {
    return "room for more than was announced";
  }
  extend(message, frame.offset, message.final_);
  return {};
}

std::string_view Outbox::expect(const Frame& frame) {
  if (frame.message >= next_message_ + kMaxExpected)
    return "a receive that is announced too early";
  if (frame.message >= next_message_) {
    drop_expected_before(next_message_);
    const bool in_order = expected_.empty() || expected_.back().message < frame.message;
    if (!in_order) return "receives out of order";
    expected_.push_back({frame.message, frame.offset});
    return {};
  }
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return {};
  SentMessage& message = *found->second;
  const bool fits = frame.offset >= message.payload_.size();
  if (fits && message.granted_ == 0) {
    extend(message, message.payload_.size(), message.final_);
  }
  return {};
}

std::size_t Outbox::take_expected(std::uint64_t message) {
  drop_expected_before(message);
  if (expected_.empty() || expected_.front().message != message) return 0;
  const std::size_t room = expected_.front().room;
  expected_.pop_front();
  return room;
}

void Outbox::drop_expected_before(std::uint64_t message) {
  while (!expected_.empty() && expected_.front().message < message) {
    expected_.pop_front();
  }
}

void Outbox::extend(SentMessage& message, std::size_t granted,
                    std::size_t final_nbytes) {
  const bool was_ready = message.started_ < message.sendable();
  message.granted_ = granted;
  message.final_ = final_nbytes;
  if (!was_ready && message.started_ < message.sendable()) ready_.push_back(&message);
}

std::string_view Outbox::discard(const Frame& frame) {
  if (frame.message >= next_message_) return "refusal of a message never sent";
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return {};
  SentMessage& message = *found->second;
  cancel(message);
  message.released_ = message.payload_.size();
  return {};
}

std::string_view Outbox::credit(const Frame& frame) {
  if (frame.offset > charged_) return "more credit than was used";
  charged_ -= frame.offset;
  return {};
}

void Outbox::cancel(SentMessage& message) {
  streams_.keep_chunks(message.message_);
  forget(message);
}

void Outbox::forget(SentMessage& message) {
  std::erase(ready_, &message);
  waiting_.erase(message.message_);
  message.outbox_ = nullptr;
}

void Outbox::lose() {
  for (const auto& [number, message] : waiting_) message->outbox_ = nullptr;
  waiting_.clear();
  ready_.clear();
}

}  // namespace bluecomm::stream
