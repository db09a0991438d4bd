#pragma once

#include <chrono>
#include <cstddef>
#include <list>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "transport/tcp/address.h"
#include "transport/tcp/handshake.h"
#include "transport/tcp/options.h"
#include "transport/tcp/poller.h"

namespace bluecomm::tcp {

// Opens one group of streams to a peer. Tries the peer's addresses in their order, a
// little after one another; the first with a complete handshake gets all streams.
class Dialer {
 public:
  enum class State { kRunning, kDone, kFailed };

  // `hello`: this rank, the peer, epoch and job. `addresses` outlives the dialer.
  Dialer(Poller& poller, const TcpOptions& options, const Hello& hello,
         const std::vector<Address>& addresses, Clock::time_point now);

  void advance(Clock::time_point now);
  State state() const { return state_; }
  Clock::time_point next_timer() const;

  // When done: the sockets, by stream.
  std::vector<UniqueFd> take_sockets() { return std::move(sockets_); }
  // When failed: what went wrong with each address, by address.
  const std::map<std::string, std::string>& failures() const { return failures_; }
  // When failed: every address refused, so nobody listens there.
  bool refused() const { return refused_; }

  void abandon() noexcept;

 private:
  struct Attempt {
    const Address* address;
    std::size_t stream;
    UniqueFd fd;
    Watch watch;
    Handshake handshake;
    Clock::time_point deadline;
    bool connected = false;
  };

  void start(const Address& address, std::size_t stream, Clock::time_point now);
  // Why the attempt is of no use, or nothing.
  std::optional<std::string> step(Attempt& attempt, Clock::time_point now);
  void keep_winner(Attempt& attempt, Clock::time_point now);
  void note_failure(const Address& address, const std::string& why);

  Poller& poller_;
  const TcpOptions& options_;
  Hello hello_;
  const std::vector<Address>& addresses_;
  std::size_t next_address_ = 0;
  Clock::time_point next_start_;
  const Address* winner_ = nullptr;
  std::list<Attempt> attempts_;
  std::vector<UniqueFd> sockets_;
  std::size_t missing_;
  std::map<std::string, std::string> failures_;
  bool refused_ = true;
  State state_ = State::kRunning;
};

}  // namespace bluecomm::tcp
