// The receiving half of an MpiChannel. It starts the receives of chunks, grants them
// to the sender, and shows them in the order of the payload. Receives of messages that
// nobody wants are left to the port, which completes or cancels them. Called by the
// channel and by the messages, under the progress lock.
#include "transport/mpi/inbox.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

namespace bluecomm::mpi {

// --- Messages -----------------------------------------------------------------------
MpiIncoming::MpiIncoming(Inbox& inbox, const Frame& frame, const Header& header,
                         std::span<const std::byte> eager)
    : inbox_(&inbox),
      message_(frame.message),
      charged_(frame.charged != 0 ? sizeof(Header) + header.nbytes : 0),
      header_(header),
      is_eager_(!eager.empty()),
      in_chunks_(is_eager_ ? 0 : frame.begin),
      early_tag_(frame.tag),
      early_(early_part(early_tag_, in_chunks_)) {
  if (eager.size() >= kKeptEager) {
    frame_ = inbox.port_.keep_frame();
    eager_ = eager.data();
  } else if (is_eager_) {
    copy_.assign(eager.begin(), eager.end());
    eager_ = copy_.data();
  }
}

MpiIncoming::~MpiIncoming() {
  if (inbox_ == nullptr) return;
  inbox_->port_.frames().give(std::move(frame_));
  try {
    inbox_->remove(*this);
  } catch (const std::exception&) {
    // MPI has failed. The next poll reports that.
  }
}

void MpiIncoming::accept(std::span<std::byte>) {
  accepted_ = true;
  if (inbox_ != nullptr) inbox_->extend_grant(*this);
}

std::span<const std::byte> MpiIncoming::readable() const {
  if (!accepted_ || consumed_ == nbytes()) return {};
  if (is_eager_) return {eager_ + consumed_, nbytes() - consumed_};
  if (consumed_ >= in_chunks_) {
    return std::span<const std::byte>(seal_).subspan(
        std::min(consumed_ - in_chunks_, seal_.size()));
  }
  if (arrived_ == consumed_) return {};
  const std::size_t begin = consumed_ % kChunkBytes;
  return {chunks_.front().get() + begin,
          std::min(kChunkBytes - begin, arrived_ - consumed_)};
}

void MpiIncoming::consume(std::size_t nbytes) {
  const std::size_t before = consumed_;
  consumed_ += nbytes;
  if (is_eager_ || before >= in_chunks_) return;
  const bool is_last = consumed_ == in_chunks_;
  if (consumed_ / kChunkBytes == before / kChunkBytes && !is_last) return;
  if (inbox_ == nullptr) {
    chunks_.pop_front();
    return;
  }
  inbox_->held_ -=
      std::min(kChunkBytes, in_chunks_ - before / kChunkBytes * kChunkBytes);
  inbox_->port_.chunks().give(std::move(chunks_.front()));
  chunks_.pop_front();
  inbox_->extend_grant(*this);
}

// --- Inbox --------------------------------------------------------------------------
Inbox::~Inbox() {
  if (has_lent_tags_ && !is_complete_) port_.taint();
  for (MpiIncoming* incoming : known_) {
    try {
      abandon_receives(*incoming);
    } catch (const std::exception&) {
      // MPI has failed and no longer writes to memory.
    }
    incoming->inbox_ = nullptr;
  }
}

bool Inbox::take(const Frame& frame, std::span<const std::byte> rest) {
  Header header;
  if (rest.size() != sizeof header + frame.end) return false;
  std::memcpy(&header, rest.data(), sizeof header);
  const std::span<const std::byte> eager = rest.subspan(sizeof header);
  if (!eager.empty() && eager.size() != header.nbytes) return false;
  const bool is_sealed = eager.empty() && frame.begin != header.nbytes;
  if (is_sealed && (header.nbytes == 0 || frame.begin != before_seal(header.nbytes))) {
    return false;
  }
  if (frame.tag != 0 && !(is_sealed && has_lent_tags_)) return false;
  auto incoming = std::make_unique<MpiIncoming>(*this, frame, header, eager);
  known_.insert(incoming.get());
  if (is_sealed) unsealed_.emplace(frame.message, incoming.get());
  arrived_.push_back(std::move(incoming));
  ++stats_.messages_received;
  stats_.bytes_received += eager.size();
  return true;
}

bool Inbox::take_seal(const Frame& frame, std::span<const std::byte> rest) {
  const auto found = unsealed_.find(frame.message);
  if (found == unsealed_.end()) return true;  // this rank has dropped it
  MpiIncoming& incoming = *found->second;
  if (rest.size() != incoming.nbytes() - incoming.in_chunks_) return false;
  incoming.seal_.assign(rest.begin(), rest.end());
  unsealed_.erase(found);
  stats_.bytes_received += rest.size();
  return true;
}

void Inbox::cancel(const Frame& frame) {
  const auto found = unsealed_.find(frame.message);
  if (found == unsealed_.end()) return;  // this rank has dropped it
  found->second->is_cancelled_ = true;
  abandon_receives(*found->second);
}

std::unique_ptr<Incoming> Inbox::take_arrived() {
  if (arrived_.empty()) return nullptr;
  auto incoming = std::move(arrived_.front());
  arrived_.pop_front();
  return incoming;
}

void Inbox::extend_grant(MpiIncoming& incoming) {
  if (is_lost_ || !incoming.wants_more()) return;
  const std::size_t base = incoming.consumed_ / kChunkBytes * kChunkBytes;
  const std::size_t left = kBudget - std::min(kBudget, held_);
  const std::size_t own = incoming.granted_ - base;
  std::size_t room = std::min(kWindow - std::min(kWindow, own), left);
  if (own == 0) room = std::max(room, kChunkBytes);
  const std::size_t limit = incoming.granted_ + room / kChunkBytes * kChunkBytes;
  const std::size_t end = std::min(incoming.in_chunks_, limit);
  const std::size_t early = std::min(end, incoming.early_);
  if (incoming.granted_ < early) {
    receive_next(incoming, early, incoming.early_tag_);
    receive(incoming);
  }
  if (incoming.granted_ < end) grant(incoming, end);
}

void Inbox::receive_next(MpiIncoming& incoming, std::size_t end, int tag) {
  while (incoming.granted_ < end) {
    const std::size_t nbytes = std::min(kChunkBytes, end - incoming.granted_);
    incoming.posted_.push_back(
        port_.receive_chunk(peer_, tag, nbytes, tag == incoming.early_tag_));
    incoming.granted_ += nbytes;
    held_ += nbytes;
    receiving_.insert(&incoming);
  }
}

void Inbox::grant(MpiIncoming& incoming, std::size_t end) {
  if (incoming.tag_ < 0) {
    const std::optional<int> tag = port_.take_tag();
    if (!tag) {
      starved_.insert(&incoming);
      return;
    }
    incoming.tag_ = *tag;
  }
  Frame frame{.kind = FrameKind::kGrant, .tag = incoming.tag_};
  frame.message = incoming.message_;
  frame.begin = incoming.granted_;
  frame.end = end;
  receive_next(incoming, end, incoming.tag_);
  outbox_.control(frame);
  const bool is_zero_copy = incoming.in_chunks_ != incoming.nbytes();
  if (is_zero_copy && !has_lent_tags_) lend_tags();
}

void Inbox::lend_tags() {
  const std::optional<int> first = port_.take_tags(kEarlyTags);
  if (!first) return;
  has_lent_tags_ = true;
  Frame frame{.kind = FrameKind::kTags, .tag = *first};
  frame.end = kEarlyTags;
  outbox_.control(frame);
}

bool Inbox::progress() {
  bool any = false;
  for (auto at = receiving_.begin(); at != receiving_.end();) {
    MpiIncoming& incoming = **at;
    any |= receive(incoming);
    at = incoming.posted_.empty() ? receiving_.erase(at) : std::next(at);
  }
  const std::set<MpiIncoming*> starved = std::exchange(starved_, {});
  for (MpiIncoming* incoming : starved) extend_grant(*incoming);
  return any;
}

bool Inbox::receive(MpiIncoming& incoming) {
  bool any = false;
  while (!incoming.posted_.empty()) {
    ChunkReceive& next = incoming.posted_.front();
    const std::optional<Completion> done = port_.test(next);
    if (!done) break;
    any = true;
    if (done->nbytes != next.nbytes) incoming.is_cancelled_ = true;
    if (incoming.is_cancelled_) {
      port_.chunks().give(std::move(next.memory));
    } else {
      incoming.arrived_ += next.nbytes;
      stats_.bytes_received += next.nbytes;
      incoming.chunks_.push_back(std::move(next.memory));
    }
    incoming.posted_.pop_front();
  }
  if (incoming.arrived_ == incoming.in_chunks_ && incoming.tag_ >= 0) {
    port_.give_tag(std::exchange(incoming.tag_, -1));
  }
  return any;
}

void Inbox::remove(MpiIncoming& incoming) {
  known_.erase(&incoming);
  receiving_.erase(&incoming);
  starved_.erase(&incoming);
  unsealed_.erase(incoming.message_);
  if (!incoming.is_eager_) {
    const std::size_t base = incoming.consumed_ >= incoming.in_chunks_
                                 ? incoming.granted_
                                 : incoming.consumed_ / kChunkBytes * kChunkBytes;
    held_ -= incoming.granted_ - base;
    if (!is_lost_ && !incoming.is_whole()) {
      Frame frame{.kind = FrameKind::kDiscard};
      frame.message = incoming.message_;
      outbox_.control(frame);
    }
    abandon_receives(incoming);
    for (Buffer& chunk : incoming.chunks_) port_.chunks().give(std::move(chunk));
  }
  if (incoming.charged_ == 0 || is_lost_) return;
  freed_credit_ += incoming.charged_;
  if (freed_credit_ < kCreditStep) return;
  Frame frame{.kind = FrameKind::kCredit};
  frame.end = std::exchange(freed_credit_, 0);
  outbox_.control(frame);
}

void Inbox::release_backend() {
  is_lost_ = true;
  for (MpiIncoming* incoming : known_) abandon_receives(*incoming);
  receiving_.clear();
  starved_.clear();
}

void Inbox::abandon_receives(MpiIncoming& incoming) {
  abandon_early_chunks(incoming);
  if (incoming.posted_.empty() && incoming.tag_ < 0) return;
  if (is_lost_) {
    port_.cancel_receives(std::move(incoming.posted_), incoming.tag_);
  } else {
    port_.drain_later(std::move(incoming.posted_), incoming.tag_);
  }
  incoming.posted_.clear();
  incoming.tag_ = -1;
}

// Starts the receives of early chunks that nobody has asked for, so that their sends
// complete.
void Inbox::abandon_early_chunks(MpiIncoming& incoming) {
  const std::size_t begin = incoming.granted_;
  const std::size_t end = std::exchange(incoming.early_, 0);
  if (begin >= end || port_.check_finalized()) return;
  std::deque<ChunkReceive> unwanted;
  for (std::size_t at = begin; at < end; at += kChunkBytes) {
    const std::size_t nbytes = std::min(kChunkBytes, end - at);
    unwanted.push_back(port_.receive_chunk(peer_, incoming.early_tag_, nbytes, true));
  }
  port_.drain_later(std::move(unwanted), -1);
}

}  // namespace bluecomm::mpi
