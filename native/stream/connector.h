#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "stream/candidate.h"
#include "stream/dialer.h"
#include "stream/options.h"
#include "stream/poller.h"

namespace bluecomm::stream {

// Finds the first stream of the link to a peer.
//
// A rank dials when it has something to send, so both ranks may dial at the same time.
// The lower rank chooses: it takes the connection that is ready first, whoever dialed
// it, sends a kOpen frame on it and closes the others. The higher rank takes the
// connection on which the kOpen arrives. So both ends choose the same connection, and
// peers find each other even if only one of them can reach the other.
class Connector {
 public:
  // The first stream of a link.
  struct First {
    StreamSocket socket;
    Nonce group{};
    bool dialed = false;  // whether this end dialed; it then opens further streams
  };

  // `hello` names this rank, the peer, the epoch and the job. The referenced objects
  // must outlive the connector.
  Connector(Poller& poller, const Options& options, const Hello& hello,
            const std::vector<Address>& addresses);

  // Asks for a connection, because there is something to send.
  void want(Clock::time_point now);
  // Takes a connection that the peer has dialed.
  void admit(const Hello& hello, StreamSocket socket, Clock::time_point now);

  // Continues; returns the stream once it is chosen.
  std::optional<First> advance(Clock::time_point now);
  // Whether this rank is the one that chooses.
  bool decides() const { return hello_.from < hello_.to; }

  // Closes all connections that were not chosen, and stops dialing.
  void stop();

  bool is_wanted() const { return wanted_since_.has_value(); }
  std::chrono::milliseconds waited(Clock::time_point now) const;
  // Set once the peer counts as unreachable: the reason.
  const std::optional<std::string>& failure() const { return failure_; }
  bool is_idle() const { return !wanted_since_ && !dialer_ && !dialed_ && !accepted_; }
  Clock::time_point next_timer() const;

  void abandon() noexcept;

 private:
  std::optional<First> check(std::optional<Candidate>& candidate, bool dialed,
                             Clock::time_point now);
  void advance_dialer(Clock::time_point now);
  void retry_later(Clock::time_point now);
  std::string failure_text() const;

  Poller& poller_;
  const Options& options_;
  const Hello hello_;
  const std::vector<Address>& addresses_;
  std::optional<Clock::time_point> wanted_since_;
  Clock::time_point retry_at_ = Clock::time_point::min();
  std::chrono::milliseconds retry_delay_{50};
  bool answered_ = false;  // some attempt failed otherwise than by a refusal
  std::map<std::string, std::string> failures_;
  std::optional<Dialer> dialer_;
  std::optional<Candidate> dialed_;
  std::optional<Candidate> accepted_;
  std::optional<std::string> failure_;
};

}  // namespace bluecomm::stream
