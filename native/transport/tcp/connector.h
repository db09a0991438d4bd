#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/fd.h"
#include "transport/tcp/dialer.h"
#include "transport/tcp/options.h"
#include "transport/tcp/poller.h"
#include "transport/tcp/wire.h"

namespace bluecomm::tcp {

// Finds the one group of streams that becomes the link to a peer.
//
// Either rank dials when it has something to send, so two groups may come up at once.
// The lower rank decides: it takes the group that is complete first, whoever dialled
// it, and says so in a kOpen on its stream 0; all others are closed. The higher rank
// takes what the kOpen comes on. So a peer that can be reached in one direction only is
// reached, and both ends always hold the same group.
class Connector {
 public:
  // `hello`: this rank, the peer, epoch and job. References outlive the connector.
  Connector(Poller& poller, const TcpOptions& options, const Hello& hello,
            std::vector<Address> addresses);

  // There is something to send to the peer.
  void want(Clock::time_point now);
  // The peer has dialled.
  void admit(const Hello& hello, UniqueFd fd, Clock::time_point now);

  // The chosen streams, in their order, once there are any.
  std::optional<std::vector<UniqueFd>> advance(Clock::time_point now);
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
  struct Group {
    Nonce nonce{};
    std::vector<UniqueFd> sockets;  // by stream; some may be missing yet
    std::size_t missing = 0;
    Clock::time_point deadline;
    Watch watch;  // of stream 0, for the kOpen
    std::array<std::byte, sizeof(Frame)> open{};
    std::size_t received = 0;
  };
  enum class Word { kNone, kOpen, kGone };

  std::optional<std::vector<UniqueFd>> check(std::optional<Group>& group,
                                             Clock::time_point now);
  Word hear(Group& group);
  void advance_dialer(Clock::time_point now);
  void retry_later(Clock::time_point now);
  std::string failure_text() const;

  Poller& poller_;
  const TcpOptions& options_;
  const Hello hello_;
  const std::vector<Address> addresses_;
  std::optional<Clock::time_point> wanted_since_;
  Clock::time_point retry_at_ = Clock::time_point::min();
  std::chrono::milliseconds retry_delay_{50};
  bool answered_ = false;  // an attempt got further than a refusal
  std::map<std::string, std::string> failures_;
  std::optional<Dialer> dialer_;
  std::optional<Group> dialled_;  // complete, of a rank that does not decide
  std::optional<Group> accepted_;
  std::optional<std::string> failure_;
};

}  // namespace bluecomm::tcp
