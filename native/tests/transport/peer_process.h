#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/fd.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

namespace bluecomm::test {

// Rank 1 in a process of its own, for tests that kill or stop it. Made while this
// process has one thread; killed by the destructor.
class PeerProcess {
 public:
  // The child makes a transport, waits for begin(), and runs `body` as rank 1 with a
  // channel to rank 0.
  PeerProcess(const std::function<std::unique_ptr<Transport>()>& make_transport,
              const std::function<void(Rank& self)>& body);
  PeerProcess(const PeerProcess&) = delete;
  PeerProcess& operator=(const PeerProcess&) = delete;
  ~PeerProcess();

  const std::string& offer() const { return offer_; }
  int pid() const { return pid_; }
  // `offer` is that of rank 0.
  void begin(const std::string& offer);
  void signal(int number) const;
  // Ends the child and forgets it.
  void kill();

 private:
  int pid_ = -1;
  UniqueFd to_child_;
  std::string offer_;
};

// Polls, or sleeps as an engine does.
void poll_or_sleep(Rank& rank);

}  // namespace bluecomm::test
