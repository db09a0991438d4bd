#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "stream/candidate.h"
#include "stream/dialer.h"
#include "stream/options.h"
#include "stream/poller.h"

namespace bluecomm::stream {

// Finds the one stream that becomes the link to a peer.
//
// Either rank dials when it has something to send, so two streams may come up at once.
// The lower rank decides: it takes the one that is ready first, whoever dialled it, and
// says so in a kOpen on it; all others are closed. The higher rank takes what the kOpen
// comes on. So a peer that can be reached in one direction only is reached, and both
// ends always hold the same stream.
class Connector {
 public:
  // What a link begins with.
  struct First {
    UniqueFd socket;
    Nonce group{};
    bool dialled = false;  // by this end, which opens the further streams
  };

  // `hello`: this rank, the peer, epoch and job. References outlive the connector.
  Connector(Poller& poller, const Options& options, const Hello& hello,
            const std::vector<Address>& addresses);

  // There is something to send to the peer.
  void want(Clock::time_point now);
  // The peer has dialled.
  void admit(const Hello& hello, UniqueFd fd, Clock::time_point now);

  // The chosen stream, once there is one.
  std::optional<First> advance(Clock::time_point now);
  bool decides() const { return hello_.from < hello_.to; }

  // Closes all that is not chosen, and does nothing more.
  void stop();

  bool is_wanted() const { return wanted_since_.has_value(); }
  std::chrono::milliseconds waited(Clock::time_point now) const;
  // Why the peer is out of reach, once that is certain.
  const std::optional<std::string>& failure() const { return failure_; }
  bool is_idle() const { return !wanted_since_ && !dialer_ && !dialled_ && !accepted_; }
  Clock::time_point next_timer() const;

  void abandon() noexcept;

 private:
  std::optional<First> check(std::optional<Candidate>& candidate, bool dialled,
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
  bool answered_ = false;  // an attempt got further than a refusal
  std::map<std::string, std::string> failures_;
  std::optional<Dialer> dialer_;
  std::optional<Candidate> dialled_;
  std::optional<Candidate> accepted_;
  std::optional<std::string> failure_;
};

}  // namespace bluecomm::stream
