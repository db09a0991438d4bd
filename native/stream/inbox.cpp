// The receiving side of a link. The link calls begin() and end() for the frames of its
// streams, on the thread that calls Link::progress().
//
// A message starts with a kMessage frame on stream 0, which has the head and, for an
// eager message, the payload. Its owner accepts it, which grants the peer room, and
// kChunk frames bring the payload on any stream. If the owner announced a buffer by
// expect(), chunks may even arrive before the head. The chunks of an unsolicited
// message follow its head on stream 0, and are stored while the owner has no buffer for
// them.
#include "stream/inbox.h"

#include <algorithm>
#include <utility>

#include "stream/streams.h"

namespace bluecomm::stream {

FrameSink::Destination Inbox::begin(const Frame& frame, std::size_t stream) {
  return frame.kind == FrameKind::kMessage ? begin_message(frame)
                                           : begin_chunk(frame, stream);
}

std::string_view Inbox::end(const Frame& frame) {
  return frame.kind == FrameKind::kMessage ? end_message(frame) : end_chunk(frame);
}

FrameSink::Destination Inbox::begin_message(const Frame& frame) {
  if (frame.message != next_message_) return {{}, "a message out of order"};
  if (frame.length < head_nbytes_) return {{}, "a message without a head"};
  const std::size_t eager = frame.length - head_nbytes_;
  if (eager != 0 && eager != frame.offset) return {{}, "a message of another length"};
  message_bytes_ = std::make_unique_for_overwrite<std::byte[]>(frame.length);
  return {{message_bytes_.get(), frame.length}, {}};
}

std::string_view Inbox::end_message(const Frame& frame) {
  if (!message_bytes_) return "a message without a head";
  ++next_message_;
  auto message = std::make_unique<ReceivedMessage>(*this, frame, head_nbytes_,
                                                   std::move(message_bytes_), pool_);
  std::string_view defect;
  if (!expected_.empty()) {
    if (auto expected = expected_.extract(frame.message)) {
      defect = adopt(*message, std::move(expected.mapped()));
    }
  }
  if (message->eager_) {
    message->index_ = eager_.size();
    eager_.push_back(message.get());
  } else {
    known_.emplace(frame.message, message.get());
  }
  if (message->unsolicited_) {
    unsolicited_ += message->nbytes();
    if (unsolicited_ > kMaxUnsolicited) return "too many unsolicited bytes";
  }
  arrived_.push_back(std::move(message));
  ++stats_.messages;
  stats_.bytes += frame.length - head_nbytes_;
  return defect;
}

void Inbox::expect(std::uint64_t message, std::span<std::byte> into, bool announce) {
  if (message < next_message_) return;  // the head has already arrived
  expected_.emplace(message, PostedReceive{into, announce, 0, {}, {}});
  if (announce) control(FrameKind::kExpected, message, into.size());
}

// Hands the buffer and its chunks over to the message. The peer must not send chunks of
// an eager message, or of one that does not fit.
std::string_view Inbox::adopt(ReceivedMessage& message, PostedReceive expected) {
  const std::size_t nbytes = message.nbytes();
  const bool fits = !message.eager_ && nbytes <= expected.into.size();
  if (expected.reach > (fits ? nbytes : 0)) return "a chunk beyond its message";
  if (!fits || nbytes == 0) return {};
  if (!expected.announced) {
    message.accept(expected.into.first(nbytes));
    return {};
  }
  message.adopt(expected.into.first(nbytes), std::move(expected.begun),
                std::move(expected.arrived));
  return {};
}

FrameSink::Destination Inbox::begin_chunk(const Frame& frame, std::size_t stream) {
  if (frame.message >= next_message_) return begin_early_chunk(frame);
  const auto found = known_.find(frame.message);
  if (found == known_.end() && !is_eager(frame.message)) {
    return {};  // the message was discarded here
  }
  const auto into = found == known_.end() ? std::span<std::byte>()
                                          : found->second->destination(frame, stream);
  if (into.empty()) return {{}, "a chunk that was not asked for"};
  return {into, {}};
}

FrameSink::Destination Inbox::begin_early_chunk(const Frame& frame) {
  const auto found = expected_.find(frame.message);
  if (found == expected_.end() || !found->second.announced) {
    return {{}, "a chunk of an unknown message"};
  }
  PostedReceive& expected = found->second;
  const std::size_t room = expected.into.size();
  const std::size_t end = frame.offset + frame.length;
  if (frame.offset > room || frame.length > room - frame.offset ||
      !expected.begun.add(frame.offset, end)) {
    return {{}, "a chunk that was not asked for"};
  }
  expected.reach = std::max(expected.reach, end);
  return {expected.into.subspan(frame.offset, frame.length), {}};
}

std::string_view Inbox::end_chunk(const Frame& frame) {
  ++chunks_ended_;
  const std::size_t end = frame.offset + frame.length;
  if (const auto early = expected_.find(frame.message); early != expected_.end()) {
    early->second.arrived.add(frame.offset, end);
  } else if (const auto found = known_.find(frame.message); found != known_.end()) {
    found->second->end_chunk(frame.offset, end);
  } else {
    return {};
  }
  stats_.bytes += frame.length;
  return {};
}

std::unique_ptr<ReceivedMessage> Inbox::take_arrived() {
  if (arrived_.empty()) return nullptr;
  auto message = std::move(arrived_.front());
  arrived_.pop_front();
  return message;
}

void Inbox::extend_grant(ReceivedMessage& message) {
  const std::size_t nbytes = message.nbytes();
  std::size_t granted = nbytes;
  if (message.in_segments()) {
    const std::size_t freed =
        message.consumed_ == nbytes ? nbytes : message.consumed_ / kSegment * kSegment;
    in_segments_ -= message.held_;
    const std::size_t left = kViewBudget - std::min(kViewBudget, in_segments_);
    const std::size_t room =
        std::clamp(left / kSegment * kSegment, kSegment, kMessageWindow);
    const std::size_t wanted = std::min(nbytes - freed, room);
    granted = std::max(message.granted_, freed + wanted);
    message.held_ = granted - freed;
    in_segments_ += message.held_;
  }
  if (granted == message.granted_) return;
  message.granted_ = granted;
  control(FrameKind::kGrant, message.message_, granted);
}

bool Inbox::is_eager(std::uint64_t message) const {
  return std::any_of(eager_.begin(), eager_.end(), [=](const ReceivedMessage* one) {
    return one->message_ == message;
  });
}

void Inbox::remove(ReceivedMessage& message) {
  if (message.eager_) return remove_eager(message);
  known_.erase(message.message_);
  streams_.drop_chunks(message.message_);
  in_segments_ -= message.held_;
  if (message.unsolicited_) {
    unsolicited_ -= message.nbytes();
    return_credit(head_nbytes_ + message.nbytes());
  }
  if (message.arrived_.length() < message.nbytes()) {
    control(FrameKind::kDiscard, message.message_, 0);
  }
}

void Inbox::remove_eager(ReceivedMessage& message) {
  eager_.back()->index_ = message.index_;
  std::swap(eager_[message.index_], eager_.back());
  eager_.pop_back();
  if (message.charged_) return_credit(head_nbytes_ + message.nbytes());
}

void Inbox::return_credit(std::size_t nbytes) {
  freed_credit_ += nbytes;
  if (freed_credit_ < credit_step_) return;
  control(FrameKind::kCredit, 0, std::exchange(freed_credit_, 0));
}

void Inbox::control(FrameKind kind, std::uint64_t message, std::uint64_t offset) {
  Frame frame{.kind = kind};
  frame.message = message;
  frame.offset = offset;
  streams_.queue_on_first(frame);
}

void Inbox::lose() {
  for (const auto& [number, message] : known_) message->inbox_ = nullptr;
  for (ReceivedMessage* message : eager_) message->inbox_ = nullptr;
  known_.clear();
  eager_.clear();
  expected_.clear();
}

}  // namespace bluecomm::stream
