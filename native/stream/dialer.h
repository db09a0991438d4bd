#pragma once

#include <cstddef>
#include <list>
#include <map>
#include <string>
#include <vector>

#include "common/fd.h"
#include "stream/dial_attempt.h"

namespace bluecomm::stream {

// Dials the first stream of a link. Tries the peer's addresses in order, starting each
// attempt shortly after the one before, and keeps the first that completes the
// handshake.
class Dialer {
 public:
  enum class State { kRunning, kDone, kFailed };

  // `hello` names this rank, the peer, the epoch and the job. `addresses` must outlive
  // the dialer.
  Dialer(Poller& poller, const Options& options, const Hello& hello,
         const std::vector<Address>& addresses, Clock::time_point now);

  void advance(Clock::time_point now);
  State state() const { return state_; }
  Clock::time_point next_timer() const;

  const Nonce& group() const { return hello_.group; }
  // In state kDone: the connected socket.
  StreamSocket take_socket() { return std::move(socket_); }
  // In state kFailed: the error of each address, by address.
  const std::map<std::string, std::string>& failures() const { return failures_; }
  // In state kFailed: whether every address refused the connection.
  bool refused() const { return refused_; }

  void abandon() noexcept;

 private:
  Poller& poller_;
  const Options& options_;
  Hello hello_;
  const std::vector<Address>& addresses_;
  std::size_t next_address_ = 0;
  Clock::time_point next_start_;
  bool greeted_ = false;  // the only attempt left has authenticated the peer
  std::list<DialAttempt> attempts_;
  StreamSocket socket_;
  std::map<std::string, std::string> failures_;
  bool refused_ = true;
  State state_ = State::kRunning;
};

}  // namespace bluecomm::stream
