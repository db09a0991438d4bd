#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "transport/channel.h"
#include "transport/shm/options.h"
#include "transport/shm/ring_connection.h"
#include "transport/shm/wire.h"

namespace bluecomm::shm {

// State shared by all channels of a transport. Outgoing and Incoming messages keep it
// alive, too.
struct SharedState {
  ShmOptions options;
  std::size_t staged_bytes = 0;  // of chunks that peers have not consumed yet
};

// A part of a payload in staging memory. Several peers may read it.
class StagedChunk {
 public:
  StagedChunk(std::shared_ptr<SharedState> shared, std::size_t nbytes);
  StagedChunk(const StagedChunk&) = delete;
  StagedChunk& operator=(const StagedChunk&) = delete;
  ~StagedChunk();

  std::span<std::byte> bytes() const { return memory_.bytes(); }
  const SharedMemory::Location& location() const { return location_; }

 private:
  const std::shared_ptr<SharedState> shared_;
  const SharedBlock memory_;
  const SharedMemory::Location location_;
};

// The staged chunks of a payload that goes to several peers: chunk k begins at the byte
// k * kChunkBytes. A send that starts while another peer still reads a chunk shares
// that chunk.
struct StagedCopies {
  std::vector<std::weak_ptr<const StagedChunk>> chunks;
};

// A message that is being sent.
struct SentMessage {
  struct Chunk {
    std::size_t end;  // offset in the payload
    std::shared_ptr<const StagedChunk> memory;
  };

  Header header;
  std::span<const std::byte> payload;
  std::size_t final = 0;          // [0, final) of the payload may be sent
  bool is_growing = false;        // then `final` grows; otherwise it is everything
  std::vector<std::byte> posted;  // owns the payload of a post
  bool is_post = false;
  std::uint64_t id = 0;  // 0 until the message is announced
  std::size_t released = 0;
  std::optional<std::size_t> live;  // if read in place: index in RingDirection::live
  std::size_t copied = 0;           // [0, copied) of the payload is in chunks
  std::shared_ptr<StagedCopies> copies;
  std::vector<Chunk> chunks;
  bool accepted = false;
  bool finished = false;  // cancelled or discarded
};

// Sends the messages of a channel, and the frames of its inbox, in order.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<SharedState> shared);
  ~Outbox();

  // Messages wait until attach(). After detach(), nothing is sent.
  void attach(RingConnection& connection) { connection_ = &connection; }
  void detach();
  // In a forked child: frees nothing, because a lock may be held forever.
  void abandon_after_fork() noexcept { connection_ = nullptr; }

  // Sends the message immediately if it is eager and there is room. Returns false
  // otherwise.
  bool send_now(const Header& header, std::span<const std::byte> payload, bool is_post);
  void enqueue(std::shared_ptr<SentMessage> message);
  void cancel(SentMessage& message);
  // More of a growing message may be sent.
  void grow(SentMessage& message, std::size_t nbytes);

  // Sends a frame of the inbox.
  void control(const Frame& frame);

  // Handles a peer's frame about a message of this outbox. Throws ConnectionError if
  // the frame makes no sense.
  void on_frame(const Frame& frame);

  // Sends queued frames, and copies the next chunks. Returns true if anything moved.
  bool progress();
  bool has_queue() const { return !queue_.empty(); }
  // Whether progress() would move anything now. If not, the peer has been asked to wake
  // this rank when that changes.
  bool can_progress();
  // A segment could not be made known because the socket is full: progress() must be
  // tried again soon.
  bool needs_retry() const { return needs_retry_; }
  // Whether everything that was sent has been delivered.
  bool idle() const { return queue_.empty() && sent_.empty(); }

 private:
  struct QueuedFrame {
    Frame frame;
    std::shared_ptr<SentMessage> message;  // if not null, instead of the frame
  };

  bool start(const std::shared_ptr<SentMessage>& message);
  bool announce(const std::shared_ptr<SentMessage>& message);
  bool fits_as_eager(std::size_t nbytes, bool is_post) const;
  bool push_eager(const Header& header, std::span<const std::byte> payload,
                  bool is_post);
  void offer_in_place(SentMessage& message, Frame& frame);
  bool flush_queue();
  void stage_ahead(SentMessage& message);
  std::shared_ptr<const StagedChunk> next_chunk(SentMessage& message);
  bool stage(SentMessage& message);
  void show(const SentMessage& message, const SentMessage::Chunk& chunk);
  bool can_copy_chunk(const SentMessage& message) const;
  bool copy_chunk(SentMessage& message);
  void release_live(SentMessage& message);
  void free_chunks(SentMessage& message, std::size_t consumed);
  void on_grant(const std::shared_ptr<SentMessage>& message);
  void on_consumed(SentMessage& message, std::uint64_t nbytes);

  const std::shared_ptr<SharedState> shared_;
  RingConnection* connection_ = nullptr;
  std::uint64_t last_id_ = 0;
  std::size_t credit_ = kEagerCredit;
  std::deque<QueuedFrame> queue_;
  // Large messages, by id.
  std::unordered_map<std::uint64_t, std::shared_ptr<SentMessage>> sent_;
  // Accepted messages that are copied in chunks.
  std::vector<std::shared_ptr<SentMessage>> streaming_;
  std::vector<std::size_t> free_live_;
  bool needs_retry_ = false;
};

}  // namespace bluecomm::shm
