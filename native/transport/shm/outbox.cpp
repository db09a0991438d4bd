// The sending half of a RingChannel. Eager messages go into the ring with their
// payload. Large ones are announced; the peer reads them in place if they lie in
// shared memory, and otherwise from chunks that progress() copies into staging memory.
// Frames wait in a queue while the ring is full. Called by the channel and by the
// messages, under the progress lock.
#include "transport/shm/outbox.h"

#include <algorithm>
#include <string>
#include <utility>

namespace bluecomm::shm {
namespace {

// One call of progress() copies at most this many chunks, so that other channels are
// served in time.
constexpr int kChunksPerTurn = 4;

}  // namespace

StagedChunk::StagedChunk(std::shared_ptr<SharedState> shared, std::size_t nbytes)
    : shared_(std::move(shared)),
      memory_(shared_->options.memory->allocate(nbytes)),
      location_(*shared_->options.memory->find(memory_.bytes())) {
  shared_->staged_bytes += nbytes;
}

StagedChunk::~StagedChunk() { shared_->staged_bytes -= memory_.bytes().size(); }

Outbox::Outbox(std::shared_ptr<SharedState> shared) : shared_(std::move(shared)) {
  for (std::size_t i = kLiveMessages; i > 0; --i) free_live_.push_back(i - 1);
}

Outbox::~Outbox() { detach(); }

void Outbox::detach() {
  connection_ = nullptr;
  queue_.clear();
  streaming_.clear();
  for (const auto& [id, message] : sent_) {
    message->chunks.clear();
    message->finished = true;
  }
  sent_.clear();
}

bool Outbox::fits_as_eager(std::size_t nbytes, bool is_post) const {
  return is_post || (nbytes <= shared_->options.eager_bytes && nbytes <= credit_);
}

bool Outbox::push_eager(const Header& header, std::span<const std::byte> payload,
                        bool is_post) {
  Frame frame{.kind = FrameKind::kEager, .id = last_id_ + 1};
  if (!is_post) frame.length = payload.size();
  if (!connection_->push(frame, std::as_bytes(std::span(&header, 1)), payload))
    return false;
  ++last_id_;
  credit_ -= frame.length;
  return true;
}

bool Outbox::send_now(const Header& header, std::span<const std::byte> payload,
                      bool is_post) {
  return connection_ && queue_.empty() && fits_as_eager(payload.size(), is_post) &&
         push_eager(header, payload, is_post);
}

void Outbox::enqueue(std::shared_ptr<SentMessage> message) {
  if (!message->is_growing) message->final = message->payload.size();
  queue_.push_back({{}, std::move(message)});
  if (connection_ && queue_.size() == 1) flush_queue();
}

void Outbox::control(const Frame& frame) {
  if (!connection_) return;
  if (queue_.empty() && connection_->push(frame)) return;
  queue_.push_back({frame, nullptr});
}

void Outbox::cancel(SentMessage& message) {
  if (message.finished || message.released == message.header.nbytes) return;
  message.finished = true;
  message.payload = {};
  if (message.id == 0 || !connection_) return;
  if (message.live) connection_->outbound().live[*message.live].store(0);
  fence();
  control({.kind = FrameKind::kCancel, .id = message.id});
}

void Outbox::grow(SentMessage& message, std::size_t nbytes) {
  if (message.finished) return;
  message.final = nbytes;
  if (!connection_ || !message.accepted) return;
  while (can_copy_chunk(message) && copy_chunk(message)) {
  }
}

bool Outbox::start(const std::shared_ptr<SentMessage>& message) {
  if (message->finished) return true;
  if (!fits_as_eager(message->payload.size(), message->is_post)) {
    return announce(message);
  }
  if (!push_eager(message->header, message->payload, message->is_post)) return false;
  message->id = last_id_;
  message->released = message->payload.size();
  return true;
}

bool Outbox::announce(const std::shared_ptr<SentMessage>& message) {
  if (!connection_->fits(sizeof(Frame) + sizeof(Header))) return false;
  Frame frame{.kind = FrameKind::kLarge, .id = last_id_ + 1};
  offer_in_place(*message, frame);
  message->id = ++last_id_;
  sent_[message->id] = message;
  if (!message->live) stage_ahead(*message);
  connection_->push(frame, std::as_bytes(std::span(&message->header, 1)));
  for (const SentMessage::Chunk& chunk : message->chunks) show(*message, chunk);
  return true;
}

// Copies the first chunks before the receiver asks, so that a receiver that is ready
// need not wait for the copy. Leaves half of the staging memory to accepted messages.
void Outbox::stage_ahead(SentMessage& message) {
  const std::size_t limit = shared_->options.staging_bytes / 2;
  while (message.copied < message.final && message.chunks.size() < kChunksAhead &&
         shared_->staged_bytes + kChunkBytes <= limit && stage(message)) {
  }
}

// Offers the payload to be read in place if it lies in shared memory.
void Outbox::offer_in_place(SentMessage& message, Frame& frame) {
  if (message.is_growing) return;
  const auto location = shared_->options.memory->find(message.payload);
  if (!location || free_live_.empty() || !connection_->share(location->segment)) return;
  message.live = free_live_.back();
  free_live_.pop_back();
  connection_->outbound().live[*message.live].store(frame.id);
  frame.segment = location->segment->id();
  frame.offset = location->offset;
  frame.live = *message.live;
}

bool Outbox::flush_queue() {
  bool changed = false;
  while (!queue_.empty()) {
    const QueuedFrame& item = queue_.front();
    if (item.message ? !start(item.message) : !connection_->push(item.frame)) break;
    queue_.pop_front();
    changed = true;
  }
  return changed;
}

bool Outbox::can_progress() {
  if (!connection_) return false;
  if (!queue_.empty()) {
    // No queued frame needs more room than kMaxFrame.
    connection_->wait_for_space();
    return connection_->fits(kMaxFrame);
  }
  return !needs_retry_ &&
         std::any_of(streaming_.begin(), streaming_.end(),
                     [this](const auto& message) { return can_copy_chunk(*message); });
}

bool Outbox::progress() {
  if (!connection_) return false;
  bool changed = flush_queue();
  needs_retry_ = false;
  int left = kChunksPerTurn;
  for (bool copied = true; copied && left > 0;) {
    copied = false;
    // Takes one chunk of each message in turn.
    for (std::size_t i = 0; i < streaming_.size() && left > 0; ++i) {
      if (!can_copy_chunk(*streaming_[i]) || !copy_chunk(*streaming_[i])) continue;
      copied = true;
      --left;
    }
    changed |= copied;
  }
  std::erase_if(streaming_, [](const auto& message) {
    return message->finished || message->copied == message->header.nbytes;
  });
  return changed;
}

bool Outbox::can_copy_chunk(const SentMessage& message) const {
  if (message.finished || message.copied == message.final) return false;
  // The first chunk ignores all limits: otherwise messages could wait for each other
  // forever.
  return message.chunks.empty() ||
         (message.chunks.size() < kChunksPerMessage &&
          shared_->staged_bytes + kChunkBytes <= shared_->options.staging_bytes);
}

// Returns the next chunk: a copy made for another peer, or a new one. Returns nullptr
// if the segment cannot be made known to the peer now.
std::shared_ptr<const StagedChunk> Outbox::next_chunk(SentMessage& message) {
  const std::size_t index = message.copied / kChunkBytes;
  if (message.copies) {
    message.copies->chunks.resize(std::max(message.copies->chunks.size(), index + 1));
    if (auto chunk = message.copies->chunks[index].lock()) return chunk;
  }
  const std::size_t n = std::min(kChunkBytes, message.final - message.copied);
  const auto chunk = std::make_shared<const StagedChunk>(shared_, n);
  if (!connection_->share(chunk->location().segment)) return nullptr;
  std::copy_n(message.payload.data() + message.copied, n, chunk->bytes().data());
  if (message.copies) message.copies->chunks[index] = chunk;
  return chunk;
}

// Adds the next chunk to the message. Returns false if it cannot be made known to the
// peer now.
bool Outbox::stage(SentMessage& message) {
  std::shared_ptr<const StagedChunk> chunk = next_chunk(message);
  if (!chunk || !connection_->share(chunk->location().segment)) {
    needs_retry_ = true;
    return false;
  }
  message.copied += chunk->bytes().size();
  if (message.accepted) message.released = message.copied;
  message.chunks.push_back({message.copied, std::move(chunk)});
  return true;
}

void Outbox::show(const SentMessage& message, const SentMessage::Chunk& chunk) {
  control({.kind = FrameKind::kChunk,
           .id = message.id,
           .segment = chunk.memory->location().segment->id(),
           .offset = chunk.memory->location().offset,
           .length = chunk.memory->bytes().size()});
}

bool Outbox::copy_chunk(SentMessage& message) {
  if (!stage(message)) return false;
  show(message, message.chunks.back());
  return true;
}

void Outbox::on_frame(const Frame& frame) {
  if (frame.kind == FrameKind::kCredit) {
    if (frame.length > kEagerCredit - credit_)
      throw ConnectionError("it returned more credit than was used");
    credit_ += frame.length;
    return;
  }
  if (frame.id == 0 || frame.id > last_id_) {
    throw ConnectionError("it answered message number " + std::to_string(frame.id) +
                          ", but the last is number " + std::to_string(last_id_));
  }
  const auto found = sent_.find(frame.id);
  if (found == sent_.end()) return;  // the message has ended since
  const std::shared_ptr<SentMessage> message = found->second;
  if (frame.kind == FrameKind::kGrant) {
    on_grant(message);
    return;
  }
  if (frame.kind == FrameKind::kConsumed) {
    on_consumed(*message, frame.length);
    if (frame.length < message->header.nbytes) return;
  }
  // The message has been consumed or discarded.
  if (!message->finished) message->released = message->header.nbytes;
  message->finished = true;
  release_live(*message);
  free_chunks(*message, message->header.nbytes);
  sent_.erase(frame.id);
}

void Outbox::on_grant(const std::shared_ptr<SentMessage>& message) {
  if (std::exchange(message->accepted, true)) {
    throw ConnectionError("it accepted message " + std::to_string(message->id) +
                          " twice");
  }
  release_live(*message);
  if (message->finished) return;
  message->released = message->copied;
  streaming_.push_back(message);
}

void Outbox::on_consumed(SentMessage& message, std::uint64_t nbytes) {
  std::uint64_t readable = 0;
  if (message.accepted) readable = message.copied;
  if (message.live) readable = message.header.nbytes;
  if (nbytes > readable) {
    throw ConnectionError("it consumed " + std::to_string(nbytes) + " of " +
                          std::to_string(readable) + " bytes of message " +
                          std::to_string(message.id));
  }
  if (!message.live) {
    free_chunks(message, nbytes);
  } else if (!message.finished) {
    message.released = std::max<std::size_t>(message.released, nbytes);
  }
}

void Outbox::release_live(SentMessage& message) {
  if (!message.live) return;
  connection_->outbound().live[*message.live].store(0);
  free_live_.push_back(*message.live);
  message.live.reset();
}

void Outbox::free_chunks(SentMessage& message, std::size_t consumed) {
  std::erase_if(message.chunks,
                [&](const SentMessage::Chunk& chunk) { return chunk.end <= consumed; });
}

}  // namespace bluecomm::shm
