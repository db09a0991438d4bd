#pragma once

#include <optional>
#include <string>

#include "common/fd.h"
#include "stream/address.h"
#include "stream/handshake.h"
#include "stream/options.h"
#include "stream/poller.h"
#include "stream/stream_socket.h"

namespace bluecomm::stream {

// One connection attempt to one address, from connect() until its handshake is done.
class DialAttempt {
 public:
  // `hello` must have its stream and group set; the constructor sets the nonce.
  DialAttempt(Poller& poller, const Options& options, const Address& address,
              Hello hello, Clock::time_point now);

  // Continues the attempt. Returns the reason once it has failed.
  std::optional<std::string> advance(Clock::time_point now);
  // After a failure: whether the address refused the connection.
  bool refused() const { return refused_; }

  const Address& address() const { return address_; }
  const Hello& hello() const { return hello_; }
  // Whether the peer has proved that it knows the key.
  bool greeted() const { return handshake_.greeted(); }
  bool done() const { return handshake_.state() == Handshake::State::kDone; }
  StreamSocket take_socket();

  Clock::time_point deadline() const { return deadline_; }
  void abandon() noexcept { fd_.reset(); }

 private:
  const Address address_;
  const Hello hello_;
  const Clock::time_point deadline_;
  Handshake handshake_;
  int error_ = 0;  // errno of connect(), or 0
  UniqueFd fd_;
  Watch watch_;
  bool connected_ = false;
  bool refused_ = false;
};

}  // namespace bluecomm::stream
