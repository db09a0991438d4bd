#include "transport/shm/send_side.h"

#include <algorithm>
#include <string>
#include <utility>

namespace bluecomm::shm {
namespace {

// Chunks that one pump copies at most, so that it does not keep others waiting.
constexpr int kChunksPerPump = 4;

}  // namespace

StagedChunk::StagedChunk(std::shared_ptr<Shared> shared, std::size_t nbytes)
    : shared_(std::move(shared)),
      memory_(shared_->options.memory->allocate(nbytes)),
      place_(*shared_->options.memory->find(memory_.bytes())) {
  shared_->staged_bytes += nbytes;
}

StagedChunk::~StagedChunk() { shared_->staged_bytes -= memory_.bytes().size(); }

SendSide::SendSide(std::shared_ptr<Shared> shared) : shared_(std::move(shared)) {
  for (std::size_t i = kLiveMessages; i > 0; --i) free_live_.push_back(i - 1);
}

SendSide::~SendSide() { detach(); }

void SendSide::detach() {
  wire_ = nullptr;
  queue_.clear();
  streaming_.clear();
  for (const auto& [id, message] : sent_) {
    message->chunks.clear();
    message->over = true;
  }
  sent_.clear();
}

bool SendSide::fits_as_eager(std::size_t nbytes, bool is_post) const {
  return is_post || (nbytes <= shared_->options.eager_bytes && nbytes <= credit_);
}

bool SendSide::push_eager(const Header& header, std::span<const std::byte> payload,
                          bool is_post) {
  Record record{.type = RecordType::kEager, .id = last_id_ + 1};
  if (!is_post) record.length = payload.size();
  if (!wire_->push(record, std::as_bytes(std::span(&header, 1)), payload)) return false;
  ++last_id_;
  credit_ -= record.length;
  return true;
}

bool SendSide::send_now(const Header& header, std::span<const std::byte> payload,
                        bool is_post) {
  return wire_ && queue_.empty() && fits_as_eager(payload.size(), is_post) &&
         push_eager(header, payload, is_post);
}

void SendSide::enqueue(std::shared_ptr<Sent> message) {
  queue_.push_back({{}, std::move(message)});
  if (wire_ && queue_.size() == 1) flush_queue();
}

void SendSide::control(const Record& record) {
  if (!wire_) return;
  if (queue_.empty() && wire_->push(record)) return;
  queue_.push_back({record, nullptr});
}

void SendSide::cancel(Sent& message) {
  if (message.over || message.released == message.header.nbytes) return;
  message.over = true;
  message.payload = {};
  if (message.id == 0 || !wire_) return;
  if (message.live) wire_->outbound().live[*message.live].store(0);
  fence();
  control({.type = RecordType::kCancel, .id = message.id});
}

bool SendSide::start(const std::shared_ptr<Sent>& message) {
  if (message->over) return true;
  if (!fits_as_eager(message->payload.size(), message->is_post)) {
    return announce(message);
  }
  if (!push_eager(message->header, message->payload, message->is_post)) return false;
  message->id = last_id_;
  message->released = message->payload.size();
  return true;
}

bool SendSide::announce(const std::shared_ptr<Sent>& message) {
  if (!wire_->fits(sizeof(Record) + sizeof(Header))) return false;
  Record record{.type = RecordType::kLarge, .id = last_id_ + 1};
  place_in_memory(*message, record);
  message->id = ++last_id_;
  sent_[message->id] = message;
  if (!message->live) stage_ahead(*message);
  wire_->push(record, std::as_bytes(std::span(&message->header, 1)));
  for (const Sent::Chunk& chunk : message->chunks) show(*message, chunk);
  return true;
}

// Copies before it is asked to, so that a receiver that is ready need not wait for
// that. Half of the memory is left for messages that have been accepted.
void SendSide::stage_ahead(Sent& message) {
  const std::size_t limit = shared_->options.staging_bytes / 2;
  while (message.copied < message.payload.size() &&
         message.chunks.size() < kChunksAhead &&
         shared_->staged_bytes + kChunkBytes <= limit && stage(message)) {
  }
}

// Offers the payload to be read in place, if it lies in shared memory.
void SendSide::place_in_memory(Sent& message, Record& record) {
  const auto place = shared_->options.memory->find(message.payload);
  if (!place || free_live_.empty() || !wire_->share(place->segment)) return;
  message.live = free_live_.back();
  free_live_.pop_back();
  wire_->outbound().live[*message.live].store(record.id);
  record.segment = place->segment->id();
  record.offset = place->offset;
  record.live = *message.live;
}

bool SendSide::flush_queue() {
  bool changed = false;
  while (!queue_.empty()) {
    const Item& item = queue_.front();
    if (item.message ? !start(item.message) : !wire_->push(item.record)) break;
    queue_.pop_front();
    changed = true;
  }
  return changed;
}

bool SendSide::can_pump() {
  if (!wire_) return false;
  if (!queue_.empty()) {
    // Whatever is first, this much is room enough to look again.
    wire_->wait_for_space();
    return wire_->fits(kMaxRecord);
  }
  return !needs_retry_ &&
         std::any_of(streaming_.begin(), streaming_.end(),
                     [this](const auto& message) { return can_copy_chunk(*message); });
}

bool SendSide::pump() {
  if (!wire_) return false;
  bool changed = flush_queue();
  needs_retry_ = false;
  int left = kChunksPerPump;
  for (bool copied = true; copied && left > 0;) {
    copied = false;
    // One chunk of each in turn.
    for (std::size_t i = 0; i < streaming_.size() && left > 0; ++i) {
      if (!can_copy_chunk(*streaming_[i]) || !copy_chunk(*streaming_[i])) continue;
      copied = true;
      --left;
    }
    changed |= copied;
  }
  std::erase_if(streaming_, [](const auto& message) {
    return message->over || message->copied == message->header.nbytes;
  });
  return changed;
}

bool SendSide::can_copy_chunk(const Sent& message) const {
  if (message.over || message.copied == message.payload.size()) return false;
  // The first chunk is beyond all limits: waiting for each other would have no end.
  return message.chunks.empty() ||
         (message.chunks.size() < kChunksPerMessage &&
          shared_->staged_bytes + kChunkBytes <= shared_->options.staging_bytes);
}

// The next chunk: another peer's, or a new copy.
std::shared_ptr<const StagedChunk> SendSide::next_chunk(Sent& message) {
  const std::size_t index = message.copied / kChunkBytes;
  if (message.copies) {
    message.copies->chunks.resize(std::max(message.copies->chunks.size(), index + 1));
    if (auto chunk = message.copies->chunks[index].lock()) return chunk;
  }
  const std::size_t n = std::min(kChunkBytes, message.payload.size() - message.copied);
  const auto chunk = std::make_shared<const StagedChunk>(shared_, n);
  if (!wire_->share(chunk->place().segment)) return nullptr;
  std::copy_n(message.payload.data() + message.copied, n, chunk->bytes().data());
  if (message.copies) message.copies->chunks[index] = chunk;
  return chunk;
}

// Adds the next chunk to the message. False when it cannot be made known to the peer.
bool SendSide::stage(Sent& message) {
  std::shared_ptr<const StagedChunk> chunk = next_chunk(message);
  if (!chunk || !wire_->share(chunk->place().segment)) {
    needs_retry_ = true;
    return false;
  }
  message.copied += chunk->bytes().size();
  if (message.accepted) message.released = message.copied;
  message.chunks.push_back({message.copied, std::move(chunk)});
  return true;
}

void SendSide::show(const Sent& message, const Sent::Chunk& chunk) {
  control({.type = RecordType::kChunk,
           .id = message.id,
           .segment = chunk.memory->place().segment->id(),
           .offset = chunk.memory->place().offset,
           .length = chunk.memory->bytes().size()});
}

bool SendSide::copy_chunk(Sent& message) {
  if (!stage(message)) return false;
  show(message, message.chunks.back());
  return true;
}

void SendSide::on_record(const Record& record) {
  if (record.type == RecordType::kCredit) {
    if (record.length > kEagerCredit - credit_)
      throw LinkError("it gave too much credit");
    credit_ += record.length;
    return;
  }
  if (record.id == 0 || record.id > last_id_) {
    throw LinkError("it answered to message " + std::to_string(record.id) + " of " +
                    std::to_string(last_id_));
  }
  const auto found = sent_.find(record.id);
  if (found == sent_.end()) return;  // crossed the end of the message
  const std::shared_ptr<Sent> message = found->second;
  if (record.type == RecordType::kAccept) {
    on_accept(message);
    return;
  }
  if (record.type == RecordType::kConsumed) {
    on_consumed(*message, record.length);
    if (record.length < message->header.nbytes) return;
  }
  // Consumed or discarded.
  if (!message->over) message->released = message->header.nbytes;
  message->over = true;
  release_live(*message);
  free_chunks(*message, message->header.nbytes);
  sent_.erase(record.id);
}

void SendSide::on_accept(const std::shared_ptr<Sent>& message) {
  if (std::exchange(message->accepted, true)) {
    throw LinkError("it accepted message " + std::to_string(message->id) + " twice");
  }
  release_live(*message);
  if (message->over) return;
  message->released = message->copied;
  streaming_.push_back(message);
}

void SendSide::on_consumed(Sent& message, std::uint64_t nbytes) {
  std::uint64_t readable = 0;
  if (message.accepted) readable = message.copied;
  if (message.live) readable = message.header.nbytes;
  if (nbytes > readable) {
    throw LinkError("it consumed " + std::to_string(nbytes) + " of " +
                    std::to_string(readable) + " bytes of message " +
                    std::to_string(message.id));
  }
  if (!message.live) {
    free_chunks(message, nbytes);
  } else if (!message.over) {
    message.released = std::max<std::size_t>(message.released, nbytes);
  }
}

void SendSide::release_live(Sent& message) {
  if (!message.live) return;
  wire_->outbound().live[*message.live].store(0);
  free_live_.push_back(*message.live);
  message.live.reset();
}

void SendSide::free_chunks(Sent& message, std::size_t consumed) {
  std::erase_if(message.chunks,
                [&](const Sent::Chunk& chunk) { return chunk.end <= consumed; });
}

}  // namespace bluecomm::shm
