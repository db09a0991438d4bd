#pragma once

#include <functional>
#include <memory>
#include <string>

#include "common/fd.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

namespace bluecomm::test {

// Rank 1 in a process of its own, for tests that kill or stop it. Construct it while
// this process has only one thread; the destructor kills the child.
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
  // `offer` is the offer of rank 0.
  void begin(const std::string& offer);
  void signal(int number) const;
  // Kills the child and waits for it.
  void kill();

 private:
  int pid_ = -1;
  UniqueFd to_child_;
  std::string offer_;
};

// Polls, or sleeps like an engine if there is nothing to do.
void poll_or_sleep(Rank& rank);

}  // namespace bluecomm::test
