#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <vector>

#include "common/fd.h"
#include "stream/address.h"
#include "stream/handshake.h"
#include "stream/options.h"
#include "stream/poller.h"
#include "stream/stream_socket.h"

namespace bluecomm::stream {

// A connection whose dialer has proved that it knows the key.
struct AcceptedConnection {
  Hello hello;
  StreamSocket socket;
};

// Accepts connections and authenticates their dialers by the handshake. A connection
// that does not complete the handshake in time is closed without an answer. Strangers
// cannot delay others by more than one turn.
class Listener {
 public:
  // Throws std::system_error if it can listen on none of the addresses.
  Listener(Poller& poller, const Options& options, const Hello& me);

  // The addresses that peers can dial.
  const std::vector<Address>& addresses() const { return addresses_; }

  // Handles the events collected by the poller; appends connections that were
  // authenticated.
  void advance(Clock::time_point now, std::vector<AcceptedConnection>& admitted);
  Clock::time_point next_timer() const;

  // The number of connections that were closed without authentication.
  std::uint64_t rejected() const { return rejected_; }

  void abandon() noexcept;

 private:
  struct ListeningSocket {
    UniqueFd fd;
    Watch watch;  // destroyed before fd
  };
  struct HalfOpen {
    UniqueFd fd;
    Watch watch;
    Handshake handshake;
    Clock::time_point since;
  };

  std::uint16_t open_socket(const Address& address);
  bool accept_from(ListeningSocket& socket, Clock::time_point now);
  void make_room(Clock::time_point now);
  bool full() const { return half_open_.size() >= options_.max_half_open; }
  void watch_sockets(bool on);

  Poller& poller_;
  const Options& options_;
  const Hello me_;
  std::vector<Address> addresses_;
  std::vector<ListeningSocket> sockets_;
  std::list<HalfOpen> half_open_;  // oldest first
  bool watching_ = false;
  Clock::time_point paused_until_ = Clock::time_point::min();
  std::uint64_t rejected_ = 0;
};

}  // namespace bluecomm::stream
