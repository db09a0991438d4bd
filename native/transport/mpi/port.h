#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "mpi/session.h"
#include "transport/mpi/buffer_pool.h"
#include "transport/mpi/request_set.h"
#include "transport/mpi/wire.h"

namespace bluecomm::mpi {

// The address of a transport: "3.1.5eed" is port 1 of rank 3 of the session. The last
// number is drawn at random for each transport, so that frames to an earlier transport
// of the same port are recognized.
struct PortAddress {
  int rank = 0;
  int port = 0;
  std::uint64_t transport = 0;

  std::string text() const;
  // Throws std::invalid_argument if `text` is not an address.
  static PortAddress parse(std::string_view text, int ranks);
};

// A receive under way, and its memory. It has no id if MPI had been finalized before.
struct ChunkReceive {
  std::optional<RequestSet::Id> id;
  Buffer memory;
  std::size_t nbytes = 0;
};

// A send under way from memory that does not belong to the port.
struct ZeroCopySend {
  RequestSet::Id id = 0;
  std::size_t end = 0;  // offset of the end of the bytes in their payload
};

// Owns the MPI resources of a transport: requests under way, their memory, and tags.
class Port {
 public:
  explicit Port(std::shared_ptr<Session> session);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  // Hands requests that have not completed to the session.
  ~Port();

  const PortAddress& address() const { return address_; }
  int ranks() { return session_->communicator().size(); }
  // Buffers for chunks and for whole frames.
  BufferPool& chunks() { return chunk_pool_; }
  BufferPool& frames() { return frame_pool_; }

  void send_frame(const PortAddress& to, Frame frame, std::span<const std::byte> header,
                  std::span<const std::byte> payload);
  // Returns the next frame that has arrived, or nothing. The frame stays readable until
  // the next call.
  std::span<const std::byte> next_frame();
  // Returns the memory of that frame, which then stays readable beyond the next call.
  // The buffer belongs to frames().
  Buffer keep_frame();

  // Whether one more chunk may be sent.
  bool has_room() const { return sends_.size() < kMaxSends; }
  // Sends the first `nbytes` bytes of `chunk`; `nbytes` may be 0.
  void send_chunk(const PortAddress& to, int tag, Buffer chunk, std::size_t nbytes);

  // Sends `bytes` without a copy. The caller keeps them alive until has_completed().
  // Returns nothing if MPI has been finalized.
  std::optional<RequestSet::Id> send_zero_copy(const PortAddress& to, int tag,
                                               std::span<const std::byte> bytes);
  // Like send_zero_copy(), but before the peer has asked for the bytes. The send
  // completes when the peer has started the receive.
  std::optional<RequestSet::Id> send_early(const PortAddress& to, int tag,
                                           std::span<const std::byte> bytes);
  // Whether the send has completed. If it has, the id is no longer valid.
  bool has_completed(RequestSet::Id id);
  // Takes over sends whose message has ended, and keeps `lease` until they have
  // completed. Once the peer is lost, as `is_lost` says, they may never complete.
  void abandon_sends(std::deque<ZeroCopySend> sends, std::shared_ptr<const void> lease,
                     std::shared_ptr<const bool> is_lost);

  // Returns a tag for one message, or nothing while all are in use.
  std::optional<int> take_tag();
  void give_tag(int tag) { free_tags_.push_back(tag); }
  // Returns the first of `count` successive tags, which are never given back. Returns
  // nothing if messages need the tags.
  std::optional<int> take_tags(int count);
  // Starts the receive of a chunk. `may_be_there` says that the chunk may have already
  // arrived; the request is then tested immediately.
  ChunkReceive receive_chunk(const PortAddress& from, int tag, std::size_t nbytes,
                             bool may_be_there);
  std::optional<Completion> test(ChunkReceive& posted);
  // Takes over unwanted receives, to each of which the sender will send a message.
  // Frees `tag` afterwards, unless it is negative.
  void drain_later(std::deque<ChunkReceive> posted, int tag);
  // Cancels unwanted receives whose sender is lost. Frees `tag`, unless it is negative
  // or messages may still arrive under it.
  void cancel_receives(std::deque<ChunkReceive> posted, int tag);

  // Tests all requests except those of received frames. Returns true if any completed.
  bool poll_requests() { return !finalized_ && requests_.poll(); }
  // Handles the requests that poll_requests() found complete. Returns true if there
  // were any.
  bool progress();
  // Whether the program has called MPI_Finalize, after which any other call of MPI
  // would abort the process. From then on the port sends and receives nothing.
  bool check_finalized();
  // MPI_Finalize has begun: gives MPI a tenth of a second to complete all sends, then
  // abandons all requests.
  void release_backend();
  // Whether all sends have completed, except those to lost peers.
  bool idle() const;

  // In a forked child: MPI belongs to the parent and is no longer called.
  void abandon_after_fork() noexcept { forked_ = finalized_ = true; }
  bool forked() const { return forked_; }

  // Messages that nobody will receive may still arrive, so the port is not used again.
  void taint() { is_dirty_ = true; }

 private:
  static constexpr std::size_t kMaxSends = 32;
  static constexpr std::size_t kFrameReceives = 4;

  struct FrameReceive {
    RequestHandle request{};
    Buffer memory;
  };
  struct BufferedSend {
    RequestSet::Id id;
    Buffer memory;
    BufferPool* origin;
  };
  struct AbandonedSends {
    std::deque<ZeroCopySend> sends;
    std::shared_ptr<const void> lease;
    std::shared_ptr<const bool> is_lost;
  };
  struct AbandonedReceives {
    std::deque<ChunkReceive> posted;
    int tag;
  };

  RequestHandle receive_frame(std::byte* into);
  void receive_next_frame();
  void cancel(RequestHandle request, Buffer memory);
  void abandon(RequestSet::Id id, std::shared_ptr<const void> memory);
  template <typename Condition>
  void wait_for(Condition done);
  void abandon_all();
  void leak_memory();
  void send(const PortAddress& to, int tag, Buffer memory, std::size_t nbytes,
            BufferPool& origin, std::deque<BufferedSend>& list);
  bool poll_sends(std::deque<BufferedSend>& sends);
  bool poll_abandoned_sends();
  bool poll_abandoned_receives();

  const std::shared_ptr<Session> session_;
  Communicator& mpi_;
  const PortAddress address_;
  RequestSet requests_{mpi_};
  BufferPool chunk_pool_{kChunkBytes};
  BufferPool frame_pool_{kMaxFrame};
  std::deque<BufferedSend> sends_;   // of copied chunks
  std::deque<BufferedSend> frames_;  // being sent
  std::vector<AbandonedSends> abandoned_sends_;
  std::vector<int> free_tags_;
  int tags_used_ = 1;  // the first tag is that of frames
  std::list<AbandonedReceives> abandoned_receives_;
  // Receives of frames, used in turn: MPI fills them in the order in which they were
  // started.
  std::array<FrameReceive, kFrameReceives> receives_;
  std::size_t next_receive_ = 0;
  bool holds_frame_ = false;  // next_frame() has returned the one at next_receive_
  bool is_dirty_ = false;     // see taint()
  bool forked_ = false;
  bool finalized_ = false;  // see check_finalized()
};

}  // namespace bluecomm::mpi
