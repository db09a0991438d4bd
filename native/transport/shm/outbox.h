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

// What the links of a transport have in common. Handles keep it alive too.
struct SharedState {
  ShmOptions options;
  std::size_t staged_bytes = 0;  // in chunks that peers have not consumed yet
};

// A part of a payload in staging memory, which may be read by several peers.
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

// What has been staged of a payload that goes to several peers: chunk k starts at k
// times kChunkBytes. Whoever comes while another peer still reads a chunk shares it.
struct StagedCopies {
  std::vector<std::weak_ptr<const StagedChunk>> chunks;
};

// A message on its way out.
struct SentMessage {
  struct Chunk {
    std::size_t end;  // payload offset
    std::shared_ptr<const StagedChunk> memory;
  };

  Header header;
  std::span<const std::byte> payload;
  std::vector<std::byte> posted;  // owns the payload of a post
  bool is_post = false;
  std::uint64_t id = 0;  // 0 until the peer has been told of the message
  std::size_t released = 0;
  std::optional<std::size_t> live;  // is read in place; index in Direction::live
  std::size_t copied = 0;           // to chunks
  std::shared_ptr<StagedCopies> copies;
  std::vector<Chunk> chunks;
  bool accepted = false;
  bool finished = false;  // cancelled or discarded
};

// The half of a link that sends: messages, and the frames of both halves, in order.
class Outbox {
 public:
  explicit Outbox(std::shared_ptr<SharedState> shared);
  ~Outbox();

  // Messages wait until the connection is there; nothing is sent after it was taken
  // away.
  void attach(RingConnection& connection) { connection_ = &connection; }
  void detach();
  // In a forked child: frees nothing, since a lock may be held for ever.
  void abandon_after_fork() noexcept { connection_ = nullptr; }

  // Sends at once if that completes the message, that is, if it is eager and there is
  // room.
  bool send_now(const Header& header, std::span<const std::byte> payload, bool is_post);
  void enqueue(std::shared_ptr<SentMessage> message);
  void cancel(SentMessage& message);

  // Sends a frame of the receiving half.
  void control(const Frame& frame);

  // A frame about a message of this side. Throws ConnectionError when it makes no
  // sense.
  void on_frame(const Frame& frame);

  // Moves what waits. True when anything did.
  bool pump();
  bool has_queue() const { return !queue_.empty(); }
  // Something would move now; else the peer has been asked to wake this rank when so.
  bool can_pump();
  // Could not make a segment known, as the socket is full: try again soon.
  bool needs_retry() const { return needs_retry_; }
  // All that was sent has been delivered.
  bool idle() const { return queue_.empty() && sent_.empty(); }

 private:
  struct QueuedFrame {
    Frame frame;
    std::shared_ptr<SentMessage> message;  // instead of the frame
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
  std::unordered_map<std::uint64_t, std::shared_ptr<SentMessage>>
      sent_;  // large, by id
  std::vector<std::shared_ptr<SentMessage>>
      streaming_;  // accepted, to be copied in chunks
  std::vector<std::size_t> free_live_;
  bool needs_retry_ = false;
};

}  // namespace bluecomm::shm
