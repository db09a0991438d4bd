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

// An established connection: two rings, the peer's doorbell, and a socket over which
// files of memory are passed and by whose end the peer's end is noticed.
class RingConnection {
 public:
  struct Endpoints {
    UniqueFd socket;
    std::shared_ptr<Mapping> memory;  // a RingPair
    PeerDoorbell doorbell;
    bool dialled = false;  // by this rank
  };

  explicit RingConnection(Endpoints endpoints);

  int socket() const { return endpoints_.socket.get(); }
  pid_t peer_pid() const { return peer_pid_; }
  const std::shared_ptr<Mapping>& memory() const { return endpoints_.memory; }
  Direction& outbound() const { return directions_[outbound_]; }
  Direction& inbound() const { return directions_[1 - outbound_]; }

  // Appends a frame and what follows it. False when the ring is full or broken.
  bool push(Frame frame, std::span<const std::byte> header = {},
            std::span<const std::byte> payload = {});
  // Asks to be woken when the peer has read more; then fits() and drained() are looked
  // at.
  void wait_for_space() { writer_.wait(); }
  bool fits(std::size_t nbytes);
  bool drained();

  RingReader& reader() { return reader_; }
  void ring() const { endpoints_.doorbell.ring(); }

  // Makes the segment known to the peer, once. False when that cannot be done now.
  bool share(const std::shared_ptr<const Segment>& segment);
  // Tells the peer which segments have gone, as frames for it.
  template <typename Tell>
  void forget_gone_segments(Tell tell) {
    std::erase_if(shared_, [&](const auto& entry) {
      if (!entry.second.expired()) return false;
      tell(Frame{.kind = FrameKind::kSegmentGone, .segment = entry.first});
      return true;
    });
  }

  // The peer's segment, or nullptr if it has not been made known or cannot be mapped.
  std::shared_ptr<const Mapping> segment(std::uint64_t id);
  void drop_segment(std::uint64_t id) { segments_.erase(id); }

  // Reads the socket. Afterwards ended() tells whether the peer has closed it.
  void receive();
  bool ended() const { return ended_; }
  // Why the connection is unusable; empty while it is not.
  const std::string& error() const { return error_; }

  // The peer does not count any more what it reads from now on.
  void revoke();
  // In a forked child: closes all files. The peer notices nothing.
  void abandon_after_fork() noexcept;

 private:
  Endpoints endpoints_;
  const pid_t peer_pid_;
  Direction* directions_;
  int outbound_;
  RingWriter writer_;
  RingReader reader_;
  std::map<std::uint64_t, std::weak_ptr<const Segment>> shared_;
  std::map<std::uint64_t, std::shared_ptr<const Mapping>> segments_;
  bool ended_ = false;
  std::string error_;
};

}  // namespace bluecomm::shm
