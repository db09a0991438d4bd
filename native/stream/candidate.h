#pragma once

#include <array>
#include <cstddef>
#include <utility>

#include "common/fd.h"
#include "stream/handshake.h"
#include "stream/options.h"
#include "stream/poller.h"
#include "stream/wire.h"

namespace bluecomm::stream {

// A connection whose handshake is done and that the peer may choose as a stream. The
// peer announces its choice by a kOpen frame, the first frame on the connection.
class Candidate {
 public:
  enum class Verdict { kNone, kOpen, kClosed };  // kNone: the peer has not decided

  Candidate(const Nonce& group, UniqueFd socket, Clock::time_point deadline)
      : group_(group), socket_(std::move(socket)), deadline_(deadline) {}

  const Nonce& group() const { return group_; }
  Clock::time_point deadline() const { return deadline_; }

  // Returns the peer's decision. Reads the kOpen frame and nothing after it.
  Verdict read_verdict(Poller& poller);

  UniqueFd take_socket() {
    watch_ = {};
    return std::move(socket_);
  }
  void abandon() noexcept { socket_.reset(); }

 private:
  Nonce group_;
  UniqueFd socket_;
  Clock::time_point deadline_;
  Watch watch_;  // destroyed before socket_
  std::array<std::byte, sizeof(Frame)> open_{};
  std::size_t received_ = 0;
};

}  // namespace bluecomm::stream
