#pragma once

#include <cstddef>
#include <list>
#include <utility>
#include <vector>

#include "stream/candidate.h"
#include "stream/dial_attempt.h"

namespace bluecomm::stream {

// Opens further streams of a link that this end has dialed. They go to the peer's
// addresses in turn, so that every path gets some. The link does not wait for them, and
// a failed attempt does not affect it.
class StreamOpener {
 public:
  // `hello` names this rank, the peer, the epoch, the job and the group. `first` is the
  // peer's address of stream 0.
  StreamOpener(Poller& poller, const Options& options, const Hello& hello,
               std::vector<Address> addresses, const Address& first);

  // Asks for `count` streams in all, stream 0 included.
  void want(std::size_t count) { wanted_ = count; }
  // Continues; returns the new streams that both ends use from now on.
  std::vector<StreamSocket> advance(Clock::time_point now);
  Clock::time_point next_timer() const;
  void abandon() noexcept;

 private:
  void start_attempts(Clock::time_point now);
  void fail(const Address& address, Clock::time_point now);

  Poller& poller_;
  const Options& options_;
  Hello hello_;
  std::vector<Address> addresses_;  // in order of use; the first one is known to work
  std::size_t wanted_ = 1;
  std::size_t opened_ = 1;  // stream 0 included
  std::size_t turn_ = 1;
  Clock::time_point retry_at_ = Clock::time_point::min();
  std::chrono::milliseconds retry_delay_{1000};
  std::list<DialAttempt> attempts_;
  std::list<std::pair<Address, Candidate>> candidates_;
};

}  // namespace bluecomm::stream
