#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "common/fd.h"

namespace bluecomm::test {

// One of the two processes of a test, each of which is a rank of NCCL.
class TestRank {
 public:
  TestRank(int number, UniqueFd other, UniqueFd controller)
      : number_(number), other_(std::move(other)), controller_(std::move(controller)) {}

  int number() const { return number_; }  // 0 or 1

  // Exchange bytes with the other rank, as NCCL's bootstrap does. Throw
  // std::runtime_error.
  void send_bytes(const void* data, std::size_t nbytes) const;
  void receive_bytes(void* data, std::size_t nbytes) const;
  template <typename T>
  T exchange(const T& mine) const {
    send_bytes(&mine, sizeof mine);
    T theirs;
    receive_bytes(&theirs, sizeof theirs);
    return theirs;
  }
  // Waits until both ranks have called it.
  void barrier() const { static_cast<void>(exchange('m')); }

  // Tells the controller that this rank has reached this point.
  void report() const;
  // Waits until the controller releases this rank.
  void wait() const;

 private:
  int number_;
  UniqueFd other_;
  UniqueFd controller_;
};

// The test's own process, which observes and disturbs the ranks.
class Controller {
 public:
  // Waits until the rank reports.
  void wait_for_report(int rank) const;
  void release(int rank) const;
  void signal(int rank, int number) const;
  // Kills a rank, which then need not succeed.
  void kill(int rank);

 private:
  friend void run_ranks(const std::map<std::string, std::string>&,
                        const std::function<void(TestRank&)>&,
                        const std::function<void(Controller&)>&);
  struct Process {
    int pid = -1;
    UniqueFd control;
  };
  Process ranks_[2];
};

// Runs `body` in two processes with these environment variables, and `meanwhile` in
// this one. Fails the test if a rank fails or does not end.
void run_ranks(const std::map<std::string, std::string>& environment,
               const std::function<void(TestRank&)>& body,
               const std::function<void(Controller&)>& meanwhile = {});

// Calls run_ranks() twice, without and with I/O threads.
void run_ranks_in_both_modes(const std::map<std::string, std::string>& environment,
                             const std::function<void(TestRank&)>& body,
                             const std::function<void(Controller&)>& meanwhile = {});

// Calls `done` until it returns true. After 30 s throws std::runtime_error, which names
// `what`.
void spin_until(const char* what, const std::function<bool()>& done);

}  // namespace bluecomm::test
