#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/fd.h"
#include "common/shared_memory.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/mapping.h"
#include "transport/shm/wire.h"

namespace bluecomm::shm {

// An established connection to one peer: two rings, the peer's doorbell, and a socket.
// The socket passes file descriptors of shared memory, and its closing shows that the
// peer's process has ended.
class RingConnection {
 public:
  struct Endpoints {
    UniqueFd socket;
    std::shared_ptr<Mapping> memory;  // a RingPair
    PeerDoorbell doorbell;
    bool dialled = false;  // by this rank, not by the peer
  };

  explicit RingConnection(Endpoints endpoints);

  int socket() const { return endpoints_.socket.get(); }
  pid_t peer_pid() const { return peer_pid_; }
  const std::shared_ptr<Mapping>& memory() const { return endpoints_.memory; }
  RingDirection& outbound() const { return directions_[outbound_]; }
  RingDirection& inbound() const { return directions_[1 - outbound_]; }

  // Appends a frame and what follows it. Returns false if the ring is full or broken.
  bool push(Frame frame, std::span<const std::byte> header = {},
            std::span<const std::byte> payload = {});
  // Asks the peer to wake this rank when it has read more. The caller must check fits()
  // and drained() afterwards.
  void wait_for_space() { writer_.wait(); }
  bool fits(std::size_t nbytes);
  bool drained();

  RingReader& reader() { return reader_; }
  void ring() const { endpoints_.doorbell.ring(); }

  // Makes the segment known to the peer, once. Returns false if the socket is full.
  bool share(const std::shared_ptr<const Segment>& segment);
  // Calls `tell` with a frame for the peer for each segment that has been freed.
  template <typename Tell>
  void forget_gone_segments(Tell tell) {
    std::erase_if(shared_, [&](const auto& entry) {
      if (!entry.second.expired()) return false;
      tell(Frame{.kind = FrameKind::kSegmentGone, .segment = entry.first});
      return true;
    });
  }

  // Returns the peer's segment, or nullptr if the peer has not made it known or it
  // cannot be mapped.
  std::shared_ptr<const Mapping> segment(std::uint64_t id);
  void drop_segment(std::uint64_t id) { segments_.erase(id); }

  // Reads the socket. Afterwards ended() says whether the peer has closed it.
  void receive();
  bool ended() const { return ended_; }
  // Why the connection can no longer be used; empty while it can.
  const std::string& error() const { return error_; }

  // From now on, the peer treats what it reads of this rank's payloads as invalid.
  void revoke();
  // In a forked child: closes all file descriptors. The peer notices nothing.
  void abandon_after_fork() noexcept;

 private:
  Endpoints endpoints_;
  const pid_t peer_pid_;
  RingDirection* directions_;
  int outbound_;
  RingWriter writer_;
  RingReader reader_;
  std::map<std::uint64_t, std::weak_ptr<const Segment>> shared_;
  std::map<std::uint64_t, std::shared_ptr<const Mapping>> segments_;
  bool ended_ = false;
  std::string error_;
};

}  // namespace bluecomm::shm
