#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <span>
#include <string>

#include "common/fd.h"
#include "transport/shm/doorbell.h"
#include "transport/shm/handshake.h"
#include "transport/shm/options.h"
#include "transport/shm/ring_connection.h"
#include "transport/shm/socket.h"

namespace bluecomm::shm {

// Establishes connections: dials peers, and accepts peers that dial.
//
// If both ranks of a pair dial, the connection dialed by the lower rank wins: the lower
// rank refuses the other one while its own is under way, and the higher rank gives up
// its own.
class Connector {
 public:
  using Clock = std::chrono::steady_clock;

  // Receives the outcome of connection attempts.
  class Owner {
   public:
    virtual ~Owner() = default;
    virtual bool knows(int peer) const = 0;
    // Returns the id of the process at the other end of the current or last connection
    // to `peer`, or 0 if there was none.
    virtual pid_t connected_process(int peer) const = 0;
    virtual void on_connected(int peer, std::unique_ptr<RingConnection> connection) = 0;
    // `peer` cannot be reached. `text` is a phrase about the peer.
    virtual void on_unreachable(int peer, const std::string& text) = 0;
  };

  // Adds its sockets to `epoll`, with the descriptor as data. The socket of an
  // established connection stays there.
  Connector(const ShmOptions& options, const Doorbell& doorbell, int epoll);

  const std::string& path() const { return listener_.path(); }

  // Starts to dial `peer`, unless it is already being dialed.
  void dial(int peer, const std::string& path);
  void give_up(int peer) { dials_.erase(peer); }
  bool is_dialling(int peer) const { return dials_.contains(peer); }

  // Whether `fd` is a socket of the connector.
  bool owns(int fd) const;
  void on_readable(int fd, Owner& owner);
  // Drops connections whose deadline has passed, and dials again where a retry is due.
  void on_time(Clock::time_point now, Owner& owner);
  Clock::time_point next_timer() const;
  // Whether any connection is being established.
  bool is_busy() const { return !dials_.empty() || !half_open_.empty(); }

  void abandon_after_fork() noexcept;

 private:
  // A connection that a peer has dialed, until its Hello has arrived.
  struct HalfOpen {
    UniqueFd socket;
    Challenge challenge;
    Clock::time_point deadline;
  };

  struct Dial {
    std::string path;
    UniqueFd socket;       // empty while it waits for retry_at
    UniqueFd memory_file;  // of the rings, after the Hello has been sent
    Challenge challenge;
    Hello hello;
    Clock::time_point retry_at = Clock::time_point::min();
    Clock::time_point refused_since = Clock::time_point::max();
  };

  enum class Fate { kWaiting, kDone };

  void watch(int fd);
  void accept_all();
  Fate serve(HalfOpen& connection, Owner& owner);
  Fate admit(HalfOpen& connection, const Hello& hello, Packet& packet, Owner& owner);
  bool refuse(HalfOpen& connection, const Hello& hello, Owner& owner);
  Fate serve(int peer, Dial& dial, Owner& owner);
  void connect(int peer, Dial& dial, Owner& owner);
  Fate greet(int peer, Dial& dial, const Packet& packet);
  Fate conclude(int peer, Dial& dial, Packet& packet, Owner& owner);
  Fate retry(int peer, Dial& dial, Owner& owner);

  const ShmOptions& options_;
  const Doorbell& doorbell_;
  const int epoll_;
  const Digest job_;
  Listener listener_;
  std::list<HalfOpen> half_open_;
  std::map<int, Dial> dials_;
};

}  // namespace bluecomm::shm
