#include "transport/mpi/outbox.h"

#include <algorithm>
#include <utility>

namespace bluecomm::mpi {

MpiOutgoing::~MpiOutgoing() {
  if (outbox_ != nullptr) outbox_->forget(*this);
}

std::unique_ptr<Outgoing> Outbox::send(const Header& header,
                                       std::span<const std::byte> payload) {
  const std::size_t cost = sizeof(Header) + payload.size();
  if (payload.empty()) {
    announce(header, payload, {}, false);
    return std::make_unique<MpiOutgoing>(0);
  }
  if (payload.size() <= eager_bytes_ && charged_ + cost <= kEagerCredit) {
    charged_ += cost;
    announce(header, payload, payload, true);
    return std::make_unique<MpiOutgoing>(payload.size());
  }
  auto outgoing = std::make_unique<MpiOutgoing>(*this, next_message_, payload);
  waiting_.emplace(next_message_, outgoing.get());
  announce(header, payload, {}, false);
  return outgoing;
}

void Outbox::post(const Header& header, std::span<const std::byte> payload) {
  announce(header, payload, payload, false);
}

void Outbox::announce(const Header& header, std::span<const std::byte> payload,
                      std::span<const std::byte> eager, bool charged) {
  Header sent = header;
  sent.nbytes = payload.size();
  Frame frame{.kind = FrameKind::kMessage, .from = rank_};
  frame.charged = charged ? 1 : 0;
  frame.message = next_message_++;
  frame.end = eager.size();
  port_.send_frame(peer_, frame, std::as_bytes(std::span(&sent, 1)), eager);
  ++stats_.messages_sent;
  stats_.bytes_sent += eager.size();
}

void Outbox::control(Frame frame) {
  frame.from = rank_;
  port_.send_frame(peer_, frame, {}, {});
}

void Outbox::grant(const Frame& frame) {
  for (std::size_t begin = frame.begin; begin < frame.end; begin += kChunkBytes) {
    const std::size_t end = std::min<std::size_t>(begin + kChunkBytes, frame.end);
    chunks_.push_back({frame.message, frame.tag, begin, end});
  }
}

void Outbox::discard(const Frame& frame) {
  const auto found = waiting_.find(frame.message);
  if (found == waiting_.end()) return;
  MpiOutgoing& outgoing = *found->second;
  outgoing.released_ = outgoing.payload_.size();
  forget(outgoing);
}

void Outbox::credit(const Frame& frame) {
  charged_ -= std::min<std::size_t>(charged_, frame.end);
}

bool Outbox::progress() {
  int sent = 0;
  for (; sent < kTurn && !chunks_.empty() && port_.has_room(); ++sent) {
    send_chunk(chunks_.front());
    chunks_.pop_front();
  }
  return sent > 0;
}

void Outbox::send_chunk(const Chunk& chunk) {
  const auto found = waiting_.find(chunk.message);
  Buffer copy = port_.chunks().take();
  if (found == waiting_.end() || chunk.end > found->second->payload_.size()) {
    port_.send_chunk(peer_, chunk.tag, std::move(copy), 0);
    return;
  }
  MpiOutgoing& outgoing = *found->second;
  const std::size_t nbytes = chunk.end - chunk.begin;
  std::copy_n(outgoing.payload_.data() + chunk.begin, nbytes, copy.get());
  port_.send_chunk(peer_, chunk.tag, std::move(copy), nbytes);
  stats_.bytes_sent += nbytes;
  outgoing.released_ = chunk.end;
  if (outgoing.released_ == outgoing.payload_.size()) forget(outgoing);
}

void Outbox::forget(MpiOutgoing& outgoing) {
  waiting_.erase(outgoing.message_);
  outgoing.outbox_ = nullptr;
}

void Outbox::lose() {
  for (const auto& [message, outgoing] : waiting_) outgoing->outbox_ = nullptr;
  waiting_.clear();
  chunks_.clear();
}

}  // namespace bluecomm::mpi
