// The sending half of an MpiChannel. A message is eager, copied chunk by chunk as the
// peer grants them, or a zero-copy send that MPI reads from the caller's memory under
// a lease. Sends that MPI still reads when their message ends are left to the port.
// Called by the channel and by the messages, under the progress lock.
#include "transport/mpi/outbox.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace bluecomm::mpi {

MpiOutgoing::~MpiOutgoing() {
  if (outbox_ == nullptr) return;
  Outbox& outbox = *outbox_;
  const bool is_under_way = released_ < early_;
  Frame frame{.kind = FrameKind::kCancel};
  frame.message = message_;
  outbox.forget(*this);
  if (!is_under_way) return;
  try {
    outbox.control(frame);
  } catch (const std::exception&) {
    // MPI has failed. The next poll reports that.
  }
}

struct Outbox::EarlyTag {
  EarlyTag(std::shared_ptr<std::vector<int>> origin_,
           std::shared_ptr<const void> lease_)
      : origin(std::move(origin_)), tag(origin->back()), lease(std::move(lease_)) {
    origin->pop_back();
  }
  ~EarlyTag() { origin->push_back(tag); }
  EarlyTag(const EarlyTag&) = delete;
  EarlyTag& operator=(const EarlyTag&) = delete;

  const std::shared_ptr<std::vector<int>> origin;
  const int tag;
  const std::shared_ptr<const void> lease;  // of the payload that is sent under the tag
};

std::unique_ptr<Outgoing> Outbox::send(const Header& header,
                                       std::span<const std::byte> payload,
                                       Lease* lease) {
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
  return send_in_chunks(header, payload, lease);
}

std::unique_ptr<Outgoing> Outbox::send_in_chunks(const Header& header,
                                                 std::span<const std::byte> payload,
                                                 Lease* lease) {
  std::shared_ptr<const void> memory;
  int early_tag = 0;
  if (lease != nullptr && payload.size() >= kMinZeroCopy) {
    memory = lease->take();
    if (!early_tags_->empty()) {
      auto early = std::make_shared<const EarlyTag>(early_tags_, std::move(memory));
      early_tag = early->tag;
      memory = std::move(early);
    }
  }
  auto outgoing =
      std::make_unique<MpiOutgoing>(*this, next_message_, payload, std::move(memory));
  waiting_.emplace(next_message_, outgoing.get());
  announce(header, payload, {}, false, outgoing->in_chunks_, early_tag);
  if (early_tag != 0) send_early(*outgoing, early_tag);
  return outgoing;
}

void Outbox::send_early(MpiOutgoing& outgoing, int tag) {
  const std::size_t whole = early_part(tag, outgoing.in_chunks_);
  while (outgoing.early_ < whole) {
    const std::size_t nbytes = std::min(kChunkBytes, whole - outgoing.early_);
    const std::optional<RequestSet::Id> id = port_.send_early(
        peer_, tag, outgoing.payload_.subspan(outgoing.early_, nbytes));
    if (!id) return;
    outgoing.early_ += nbytes;
    stats_.bytes_sent += nbytes;
    outgoing.zero_copy_sends_.push_back({*id, outgoing.early_});
  }
  reading_.insert(&outgoing);
}

void Outbox::post(const Header& header, std::span<const std::byte> payload) {
  announce(header, payload, payload, false);
}

void Outbox::announce(const Header& header, std::span<const std::byte> payload,
                      std::span<const std::byte> eager, bool charged,
                      std::size_t in_chunks, int early_tag) {
  Header sent = header;
  sent.nbytes = payload.size();
  Frame frame{.kind = FrameKind::kMessage, .from = rank_, .tag = early_tag};
  frame.charged = charged ? 1 : 0;
  frame.message = next_message_++;
  frame.begin = in_chunks;
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
  found->second->unwanted_ = true;
  reclaim(*found->second);
}

void Outbox::credit(const Frame& frame) {
  charged_ -= std::min<std::size_t>(charged_, frame.end);
}

void Outbox::lend_tags(const Frame& frame) {
  for (std::uint64_t i = 0; i < std::min<std::uint64_t>(frame.end, kEarlyTags); ++i) {
    early_tags_->push_back(frame.tag + static_cast<int>(i));
  }
}

bool Outbox::progress() {
  int sent = 0;
  for (; sent < kChunksPerTurn && !chunks_.empty() && port_.has_room(); ++sent) {
    send_chunk(chunks_.front());
    chunks_.pop_front();
  }
  // MPI may have read these chunks already.
  return poll_zero_copy() || sent > 0;
}

void Outbox::send_chunk(const Chunk& chunk) {
  const auto found = waiting_.find(chunk.message);
  if (found == waiting_.end() || found->second->unwanted_ ||
      chunk.end > found->second->in_chunks_) {
    port_.send_chunk(peer_, chunk.tag, port_.chunks().take(), 0);
    return;
  }
  MpiOutgoing& outgoing = *found->second;
  stats_.bytes_sent += chunk.end - chunk.begin;
  if (outgoing.lease_) {
    send_zero_copy(outgoing, chunk);
  } else {
    send_copied(outgoing, chunk);
  }
}

void Outbox::send_copied(MpiOutgoing& outgoing, const Chunk& chunk) {
  Buffer copy = port_.chunks().take();
  const std::size_t nbytes = chunk.end - chunk.begin;
  std::copy_n(outgoing.payload_.data() + chunk.begin, nbytes, copy.get());
  port_.send_chunk(peer_, chunk.tag, std::move(copy), nbytes);
  outgoing.released_ = chunk.end;
  if (outgoing.released_ == outgoing.payload_.size()) forget(outgoing);
}

void Outbox::send_zero_copy(MpiOutgoing& outgoing, const Chunk& chunk) {
  const std::optional<RequestSet::Id> id = port_.send_zero_copy(
      peer_, chunk.tag,
      outgoing.payload_.subspan(chunk.begin, chunk.end - chunk.begin));
  if (!id) return;
  outgoing.zero_copy_sends_.push_back({*id, chunk.end});
  reading_.insert(&outgoing);
}

bool Outbox::poll_zero_copy() {
  bool any = false;
  for (auto at = reading_.begin(); at != reading_.end();) {
    any |= reclaim(**at++);
  }
  return any;
}

// Takes back the chunks that MPI has read, in order. The message ends if all of them
// have been read, or if nobody wants the others. Returns true if MPI has read any.
bool Outbox::reclaim(MpiOutgoing& outgoing) {
  bool any = false;
  std::deque<ZeroCopySend>& sends = outgoing.zero_copy_sends_;
  for (; !sends.empty() && port_.has_completed(sends.front().id); sends.pop_front()) {
    outgoing.released_ = sends.front().end;
    any = true;
  }
  if (!sends.empty()) return any;
  reading_.erase(&outgoing);
  if (!outgoing.unwanted_ && outgoing.released_ < outgoing.in_chunks_) return any;
  if (!outgoing.unwanted_) seal(outgoing);
  outgoing.released_ = outgoing.payload_.size();
  forget(outgoing);
  return true;
}

void Outbox::seal(MpiOutgoing& outgoing) {
  const auto rest = outgoing.payload_.subspan(outgoing.in_chunks_);
  Frame frame{.kind = FrameKind::kSeal, .from = rank_};
  frame.message = outgoing.message_;
  port_.send_frame(peer_, frame, rest, {});
  stats_.bytes_sent += rest.size();
}

// MPI continues to read the chunks that it was given.
void Outbox::forget(MpiOutgoing& outgoing) {
  waiting_.erase(outgoing.message_);
  reading_.erase(&outgoing);
  detach(outgoing);
}

void Outbox::detach(MpiOutgoing& outgoing) {
  port_.abandon_sends(std::exchange(outgoing.zero_copy_sends_, {}),
                      std::exchange(outgoing.lease_, {}), is_lost_);
  outgoing.outbox_ = nullptr;
}

void Outbox::lose() {
  *is_lost_ = true;
  for (const auto& [message, outgoing] : waiting_) detach(*outgoing);
  waiting_.clear();
  reading_.clear();
  chunks_.clear();
}

}  // namespace bluecomm::mpi
