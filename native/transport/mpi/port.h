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
#include "transport/mpi/buffers.h"
#include "transport/mpi/requests.h"
#include "transport/mpi/wire.h"

namespace bluecomm::mpi {

// Where a transport is reached: "3.1.5eed" is rank 3 of the session, port 1. The number
// at the end is drawn for each transport, so that frames to an earlier one of the same
// port are known.
struct Address {
  int rank = 0;
  int port = 0;
  std::uint64_t transport = 0;

  std::string text() const;
  // Throws std::invalid_argument.
  static Address parse(std::string_view text, int ranks);
};

// A receive under way, with its memory. It has no id if MPI had ended before.
struct Posted {
  std::optional<Requests::Id> id;
  Buffer memory;
  std::size_t nbytes = 0;
};

// A send under way from memory that is not the port's.
struct Given {
  Requests::Id id = 0;
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

  const Address& address() const { return address_; }
  int ranks() { return session_->communicator().size(); }
  // Memory of chunks, and of whole frames.
  Pool& chunks() { return chunk_pool_; }
  Pool& frames() { return frame_pool_; }

  void send_frame(const Address& to, Frame frame, std::span<const std::byte> header,
                  std::span<const std::byte> payload);
  // The next frame that came, until the next call. Empty: none.
  std::span<const std::byte> next_frame();
  // The memory of that frame, which then stays beyond the next call; from frames().
  Buffer keep_frame();

  // Whether one more chunk may be under way.
  bool has_room() const { return sends_.size() < kMaxSends; }
  // Sends what `chunk` begins with; `nbytes` may be 0.
  void send_chunk(const Address& to, int tag, Buffer chunk, std::size_t nbytes);

  // Sends from `bytes`, which stay as they are until is_over(). Nothing once MPI has
  // ended.
  std::optional<Requests::Id> send_straight(const Address& to, int tag,
                                            std::span<const std::byte> bytes);
  // Likewise, before anybody has asked for them: it ends when the peer has started the
  // receive.
  std::optional<Requests::Id> send_early(const Address& to, int tag,
                                         std::span<const std::byte> bytes);
  // The id is no more then.
  bool is_over(Requests::Id id);
  // Nobody waits for these any more, which read memory that `lease` keeps. They may
  // never end if the peer `is_lost`, which changes later.
  void leave(std::deque<Given> given, std::shared_ptr<const void> lease,
             std::shared_ptr<const bool> is_lost);

  // A tag for one message; nothing while all are in use.
  std::optional<int> take_tag();
  void give_tag(int tag) { free_tags_.push_back(tag); }
  // The first of `count` successive tags, for good. Nothing when they are needed for
  // messages.
  std::optional<int> take_tags(int count);
  // `may_be_there`: perhaps it has come already, so it is looked at.
  Posted receive_chunk(const Address& from, int tag, std::size_t nbytes,
                       bool may_be_there);
  std::optional<Done> test(Posted& posted);
  // Nobody wants these any more, and their sender will answer them all. `tag`, if it is
  // not negative, is free then.
  void finish_later(std::deque<Posted> posted, int tag);
  // Nobody wants these any more, and their sender is gone.
  void drop(std::deque<Posted> posted, int tag);

  // Looks at all that is under way, but frames. True if anything ended.
  bool look() { return !has_ended_ && requests_.look(); }
  // Takes note of what look() has found. True if anything ended.
  bool progress();
  // Whether the program has called MPI_Finalize, after which any other call of MPI
  // would end it. From then on nothing is sent and nothing comes.
  bool look_for_end();
  // MPI_Finalize has begun: takes everything back from MPI.
  void end();
  // Nothing of what was sent is under way.
  bool idle() const;

  // In a forked child: MPI is the parent's, and called no more.
  void abandon() noexcept { abandoned_ = has_ended_ = true; }
  bool abandoned() const { return abandoned_; }

  // Messages may come that nobody will take.
  void taint() { is_dirty_ = true; }

 private:
  static constexpr std::size_t kMaxSends = 32;
  static constexpr std::size_t kFrameReceives = 4;

  struct FrameReceive {
    Request request{};
    Buffer memory;
  };
  struct Send {
    Requests::Id id;
    Buffer memory;
    Pool* origin;
  };
  struct Left {
    std::deque<Given> given;
    std::shared_ptr<const void> lease;
    std::shared_ptr<const bool> is_lost;
  };
  struct Orphan {
    std::deque<Posted> posted;
    int tag;
  };

  Request receive_frame(std::byte* into);
  void receive_next_frame();
  void cancel(Request request, Buffer memory);
  void bury(Requests::Id id, std::shared_ptr<const void> memory);
  template <typename Done>
  void wait_for(Done done);
  void bury_all();
  void leave_memory();
  void send(const Address& to, int tag, Buffer memory, std::size_t nbytes, Pool& origin,
            std::deque<Send>& list);
  bool end_sends(std::deque<Send>& sends);
  bool end_left();
  bool end_orphans();

  const std::shared_ptr<Session> session_;
  Communicator& mpi_;
  const Address address_;
  Requests requests_{mpi_};
  Pool chunk_pool_{kChunkBytes};
  Pool frame_pool_{kMaxFrame};
  std::deque<Send> sends_;   // of chunks
  std::deque<Send> frames_;  // on their way out
  std::vector<Left> left_;
  std::vector<int> free_tags_;
  int tags_used_ = 1;  // the first is that of frames
  std::list<Orphan> orphans_;
  // Receives of frames, in a ring: MPI fills them in the order of their start.
  std::array<FrameReceive, kFrameReceives> receives_;
  std::size_t next_receive_ = 0;
  bool holds_frame_ = false;  // the one at next_receive_ is being read
  bool is_dirty_ = false;     // see taint()
  bool abandoned_ = false;
  bool has_ended_ = false;  // MPI
};

}  // namespace bluecomm::mpi
