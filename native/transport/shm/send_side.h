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
#include "transport/shm/records.h"
#include "transport/shm/wire.h"

namespace bluecomm::shm {

// What the links of a transport have in common. Handles keep it alive too.
struct Shared {
  ShmOptions options;
  std::size_t staged_bytes = 0;  // in chunks that peers have not consumed yet
};

// A part of a payload in staging memory, which may be read by several peers.
class StagedChunk {
 public:
  StagedChunk(std::shared_ptr<Shared> shared, std::size_t nbytes);
  StagedChunk(const StagedChunk&) = delete;
  StagedChunk& operator=(const StagedChunk&) = delete;
  ~StagedChunk();

  std::span<std::byte> bytes() const { return memory_.bytes(); }
  const SharedMemory::Location& place() const { return place_; }

 private:
  const std::shared_ptr<Shared> shared_;
  const SharedBlock memory_;
  const SharedMemory::Location place_;
};

// What has been staged of a payload that goes to several peers: chunk k starts at k
// times kChunkBytes. Whoever comes while another peer still reads a chunk shares it.
struct Copies {
  std::vector<std::weak_ptr<const StagedChunk>> chunks;
};

// A message on its way out.
struct Sent {
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
  std::shared_ptr<Copies> copies;
  std::vector<Chunk> chunks;
  bool accepted = false;
  bool over = false;  // cancelled or discarded
};

// The half of a link that sends: messages, and the records of both halves, in order.
class SendSide {
 public:
  explicit SendSide(std::shared_ptr<Shared> shared);
  ~SendSide();

  // Messages wait until the wire is there; nothing is sent after it was taken away.
  void attach(Wire& wire) { wire_ = &wire; }
  void detach();
  // In a forked child: frees nothing, since a lock may be held for ever.
  void abandon() noexcept { wire_ = nullptr; }

  // Sends at once if that completes the message, that is, if it is eager and there is
  // room.
  bool send_now(const Header& header, std::span<const std::byte> payload, bool is_post);
  void enqueue(std::shared_ptr<Sent> message);
  void cancel(Sent& message);

  // Sends a record of the receiving half.
  void control(const Record& record);

  // A record about a message of this side. Throws LinkError when it makes no sense.
  void on_record(const Record& record);

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
  struct Item {
    Record record;
    std::shared_ptr<Sent> message;  // instead of the record
  };

  bool start(const std::shared_ptr<Sent>& message);
  bool announce(const std::shared_ptr<Sent>& message);
  bool fits_as_eager(std::size_t nbytes, bool is_post) const;
  bool push_eager(const Header& header, std::span<const std::byte> payload,
                  bool is_post);
  void place_in_memory(Sent& message, Record& record);
  bool flush_queue();
  void stage_ahead(Sent& message);
  std::shared_ptr<const StagedChunk> next_chunk(Sent& message);
  bool stage(Sent& message);
  void show(const Sent& message, const Sent::Chunk& chunk);
  bool can_copy_chunk(const Sent& message) const;
  bool copy_chunk(Sent& message);
  void release_live(Sent& message);
  void free_chunks(Sent& message, std::size_t consumed);
  void on_accept(const std::shared_ptr<Sent>& message);
  void on_consumed(Sent& message, std::uint64_t nbytes);

  const std::shared_ptr<Shared> shared_;
  Wire* wire_ = nullptr;
  std::uint64_t last_id_ = 0;
  std::size_t credit_ = kEagerCredit;
  std::deque<Item> queue_;
  std::unordered_map<std::uint64_t, std::shared_ptr<Sent>> sent_;  // large, by id
  std::vector<std::shared_ptr<Sent>> streaming_;  // accepted, to be copied in chunks
  std::vector<std::size_t> free_live_;
  bool needs_retry_ = false;
};

}  // namespace bluecomm::shm
