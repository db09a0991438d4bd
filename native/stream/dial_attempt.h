#pragma once

#include <optional>
#include <string>

#include "common/fd.h"
#include "stream/address.h"
#include "stream/handshake.h"
#include "stream/options.h"
#include "stream/poller.h"

namespace bluecomm::stream {

// One connection that is being dialled, until its handshake is done.
class DialAttempt {
 public:
  // `hello`: with its stream and group; the nonce is made here.
  DialAttempt(Poller& poller, const Options& options, const Address& address,
              Hello hello, Clock::time_point now);

  // Why the attempt is of no use, once that is so.
  std::optional<std::string> advance(Clock::time_point now);
  // When failed: the address refused, so nobody listens there.
  bool refused() const { return refused_; }

  const Address& address() const { return address_; }
  const Hello& hello() const { return hello_; }
  // The peer has shown that it belongs here.
  bool greeted() const { return handshake_.greeted(); }
  bool done() const { return handshake_.state() == Handshake::State::kDone; }
  UniqueFd take_socket();

  Clock::time_point deadline() const { return deadline_; }
  void abandon() noexcept { fd_.reset(); }

 private:
  const Address address_;
  const Hello hello_;
  const Clock::time_point deadline_;
  Handshake handshake_;
  int error_ = 0;  // of the first step
  UniqueFd fd_;
  Watch watch_;
  bool connected_ = false;
  bool refused_ = false;
};

}  // namespace bluecomm::stream
