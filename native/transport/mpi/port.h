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

// Where a transport is reached: "3.1.5eed" is rank 3 of the session, port 1. The number
// at the end is drawn for each transport, so that frames to an earlier one of the same
// port are known.
struct PortAddress {
  int rank = 0;
  int port = 0;
  std::uint64_t transport = 0;

  std::string text() const;
  // Throws std::invalid_argument.
  static PortAddress parse(std::string_view text, int ranks);
};

// A receive under way, with its memory. It has no id if MPI had ended before.
struct PostedReceive {
  std::optional<RequestSet::Id> id;
  Buffer memory;
  std::size_t nbytes = 0;
};

// A send under way from memory that is not the port's.
struct ZeroCopySend {
  RequestSet::Id id = 0;
  std::size_t end = 0;  // of the bytes in their payload
};

// The MPI side of a transport: what is under way there, and the memory of it.
class Port {
 public:
  explicit Port(std::shared_ptr<Session> session);
  Port(const Port&) = delete;
  Port& operator=(const Port&) = delete;
  // Leaves to the session what MPI has not ended.
  ~Port();

  const PortAddress& address() const { return address_; }
  int ranks() { return session_->communicator().size(); }
  // Memory of chunks, and of whole frames.
  BufferPool& chunks() { return chunk_pool_; }
  BufferPool& frames() { return frame_pool_; }

  void send_frame(const PortAddress& to, Frame frame, std::span<const std::byte> header,
                  std::span<const std::byte> payload);
  // The next frame that came, until the next call. Empty: none.
  std::span<const std::byte> next_frame();
  // The memory of that frame, which then stays beyond the next call; from frames().
  Buffer keep_frame();

  // Whether one more chunk may be under way.
  bool has_room() const { return sends_.size() < kMaxSends; }
  // Sends what `chunk` begins with; `nbytes` may be 0.
  void send_chunk(const PortAddress& to, int tag, Buffer chunk, std::size_t nbytes);

  // Sends from `bytes`, which stay as they are until has_completed(). Nothing once MPI
  // has ended.
  std::optional<RequestSet::Id> send_zero_copy(const PortAddress& to, int tag,
                                               std::span<const std::byte> bytes);
  // Likewise, before anybody has asked for them: it ends when the peer has started the
  // receive.
  std::optional<RequestSet::Id> send_early(const PortAddress& to, int tag,
                                           std::span<const std::byte> bytes);
  // The id is no more then.
  bool has_completed(RequestSet::Id id);
  // Nobody waits for these any more, which read memory that `lease` keeps. They may
  // never end if the peer `is_lost`, which changes later.
  void abandon_sends(std::deque<ZeroCopySend> sends, std::shared_ptr<const void> lease,
                     std::shared_ptr<const bool> is_lost);

  // A tag for one message; nothing while all are in use.
  std::optional<int> take_tag();
  void give_tag(int tag) { free_tags_.push_back(tag); }
  // The first of `count` successive tags, for good. Nothing when they are needed for
  // messages.
  std::optional<int> take_tags(int count);
  // `may_be_there`: perhaps it has come already, so it is looked at.
  PostedReceive receive_chunk(const PortAddress& from, int tag, std::size_t nbytes,
                              bool may_be_there);
  std::optional<Completion> test(PostedReceive& posted);
  // Nobody wants these any more, and their sender will answer them all. `tag`, if it is
  // not negative, is free then.
  void drain_later(std::deque<PostedReceive> posted, int tag);
  // Nobody wants these any more, and their sender is gone.
  void cancel_receives(std::deque<PostedReceive> posted, int tag);

  // Looks at all that is under way, but frames. True if anything ended.
  bool poll_requests() { return !finalized_ && requests_.poll(); }
  // Takes note of what look() has found. True if anything ended.
  bool progress();
  // Whether the program has called MPI_Finalize, after which any other call of MPI
  // would end it. From then on nothing is sent and nothing comes.
  bool check_finalized();
  // MPI_Finalize has begun: takes everything back from MPI.
  void release_backend();
  // Nothing of what was sent is under way.
  bool idle() const;

  // In a forked child: MPI is the parent's, and called no more.
  void abandon_after_fork() noexcept { forked_ = finalized_ = true; }
  bool forked() const { return forked_; }

  // Messages may come that nobody will take.
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
    std::deque<PostedReceive> posted;
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
  std::deque<BufferedSend> sends_;   // of chunks
  std::deque<BufferedSend> frames_;  // on their way out
  std::vector<AbandonedSends> abandoned_sends_;
  std::vector<int> free_tags_;
  int tags_used_ = 1;  // the first is that of frames
  std::list<AbandonedReceives> abandoned_receives_;
  // Receives of frames, in a ring: MPI fills them in the order of their start.
  std::array<FrameReceive, kFrameReceives> receives_;
  std::size_t next_receive_ = 0;
  bool holds_frame_ = false;  // the one at next_receive_ is being read
  bool is_dirty_ = false;     // see taint()
  bool forked_ = false;
  bool finalized_ = false;  // MPI
};

}  // namespace bluecomm::mpi
