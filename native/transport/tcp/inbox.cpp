#include "transport/tcp/inbox.h"

#include <algorithm>
#include <utility>

#include "transport/tcp/streams.h"

namespace bluecomm::tcp {

FrameSink::Place Inbox::begin(const Frame& frame) {
  return frame.kind == FrameKind::kMessage ? begin_message(frame) : begin_chunk(frame);
}

std::string_view Inbox::end(const Frame& frame) {
  return frame.kind == FrameKind::kMessage ? end_message(frame) : end_chunk(frame);
}

FrameSink::Place Inbox::begin_message(const Frame& frame) {
  if (frame.message != next_message_) return {{}, "a message out of order"};
  message_bytes_ = std::make_unique_for_overwrite<std::byte[]>(frame.length);
  return {{message_bytes_.get(), frame.length}, {}};
}

std::string_view Inbox::end_message(const Frame& frame) {
  ++next_message_;
  const bool charged = (frame.flags & kCharged) != 0;
  auto incoming = std::make_unique<TcpIncoming>(
      *this, frame.message, charged, std::move(message_bytes_), frame.length, pool_);
  const std::size_t eager = frame.length - sizeof(Header);
  if (eager != 0 && eager != incoming->nbytes()) return "a message of another length";
  // A payload is addressed in memory; lengths beyond that are not sincere.
  if (incoming->nbytes() > PTRDIFF_MAX) return "a message of impossible length";
  known_.emplace(frame.message, incoming.get());
  arrived_.push_back(std::move(incoming));
  ++stats_.messages_received;
  stats_.bytes_received += eager;
  return {};
}

FrameSink::Place Inbox::begin_chunk(const Frame& frame) {
  if (frame.message >= next_message_) return {{}, "a chunk of an unknown message"};
  const auto found = known_.find(frame.message);
  if (found == known_.end()) return {};  // discarded here meanwhile
  const auto place = found->second->place(frame.offset, frame.length);
  if (place.empty()) return {{}, "a chunk that was not asked for"};
  return {place, {}};
}

std::string_view Inbox::end_chunk(const Frame& frame) {
  const auto found = known_.find(frame.message);
  if (found == known_.end()) return {};
  found->second->arrived_.add(frame.offset, frame.offset + frame.length);
  stats_.bytes_received += frame.length;
  return {};
}

std::unique_ptr<Incoming> Inbox::take_arrived() {
  if (arrived_.empty()) return nullptr;
  auto incoming = std::move(arrived_.front());
  arrived_.pop_front();
  return incoming;
}

void Inbox::extend_grant(TcpIncoming& incoming) {
  const std::size_t nbytes = incoming.nbytes();
  std::size_t granted = nbytes;
  if (incoming.in_segments()) {
    const std::size_t freed = incoming.consumed_ == nbytes
                                  ? nbytes
                                  : incoming.consumed_ / kSegment * kSegment;
    in_segments_ -= incoming.held_;
    const std::size_t left = kViewBudget - std::min(kViewBudget, in_segments_);
    const std::size_t room =
        std::clamp(left / kSegment * kSegment, kSegment, kMessageWindow);
    const std::size_t wanted = std::min(nbytes - freed, room);
    granted = std::max(incoming.granted_, freed + wanted);
    incoming.held_ = granted - freed;
    in_segments_ += incoming.held_;
  }
  if (granted == incoming.granted_) return;
  incoming.granted_ = granted;
  control(FrameKind::kGrant, incoming.message_, granted);
}

void Inbox::remove(TcpIncoming& incoming) {
  const std::size_t nbytes = incoming.nbytes();
  known_.erase(incoming.message_);
  streams_.drop_chunks(incoming.message_);
  in_segments_ -= incoming.held_;
  if (!incoming.eager_ && incoming.arrived_.length() < nbytes) {
    control(FrameKind::kDiscard, incoming.message_, 0);
  }
  if (!incoming.charged_) return;
  freed_credit_ += sizeof(Header) + nbytes;
  if (freed_credit_ < kCreditStep) return;
  control(FrameKind::kCredit, 0, std::exchange(freed_credit_, 0));
}

void Inbox::control(FrameKind kind, std::uint64_t message, std::uint64_t offset) {
  Frame frame{.kind = kind};
  frame.message = message;
  frame.offset = offset;
  streams_.queue(frame);
}

void Inbox::lose() {
  for (const auto& [message, incoming] : known_) incoming->inbox_ = nullptr;
  known_.clear();
}

}  // namespace bluecomm::tcp
