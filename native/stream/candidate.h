#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "stream/handshake.h"
#include "stream/options.h"
#include "stream/poller.h"
#include "stream/stream_socket.h"
#include "stream/wire.h"

namespace bluecomm::stream {

// A connection whose handshake is done and that the peer may choose as a stream. The
// peer announces its choice by a kOpen frame, the first frame on the connection.
class Candidate {
 public:
  enum class Verdict { kNone, kOpen, kClosed };  // kNone: the peer has not decided

  Candidate(const Nonce& group, StreamSocket socket, Clock::time_point deadline)
      : group_(group), socket_(std::move(socket)), deadline_(deadline) {}

  const Nonce& group() const { return group_; }
  Clock::time_point deadline() const { return deadline_; }

  // Returns the peer's decision. Reads the kOpen frame and nothing after it.
  Verdict read_verdict(Poller& poller);

  StreamSocket take_socket() {
    watch_ = {};
    return std::move(socket_);
  }
  void abandon() noexcept { socket_.fd.reset(); }

 private:
  Nonce group_;
  StreamSocket socket_;
  Clock::time_point deadline_;
  Watch watch_;  // destroyed before socket_
  std::array<std::byte, sizeof(Frame) + kTagNbytes> open_{};
  std::size_t received_ = 0;
};

}  // namespace bluecomm::stream
