#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "common/fd.h"

namespace bluecomm::test {

// One of two processes that play two ranks of NCCL, as its own code sees it.
class TestRank {
 public:
  TestRank(int number, UniqueFd other, UniqueFd controller)
      : number_(number), other_(std::move(other)), controller_(std::move(controller)) {}

  int number() const { return number_; }  // 0 or 1

  // NCCL's bootstrap: bytes to and from the other rank. Throws std::runtime_error.
  void send_bytes(const void* data, std::size_t nbytes) const;
  void receive_bytes(void* data, std::size_t nbytes) const;
  template <typename T>
  T exchange(const T& mine) const {
    send_bytes(&mine, sizeof mine);
    T theirs;
    receive_bytes(&theirs, sizeof theirs);
    return theirs;
  }
  // Both have come here.
  void barrier() const { static_cast<void>(exchange('m')); }

  // The controller is told, or waited for.
  void report() const;
  void wait() const;

 private:
  int number_;
  UniqueFd other_;
  UniqueFd controller_;
};

// The process of the test, which does things to the ranks meanwhile.
class Controller {
 public:
  // Waits until the rank reports.
  void wait_for_report(int rank) const;
  void release(int rank) const;
  void signal(int rank, int number) const;
  // What became of an rank that a signal ends: nothing is expected of it.
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

// Runs `body` in two processes of their own, with these variables set, and `meanwhile`
// here. Fails the test if one of them fails, or does not end.
void run_ranks(const std::map<std::string, std::string>& environment,
               const std::function<void(TestRank&)>& body,
               const std::function<void(Controller&)>& meanwhile = {});

// run_ranks(), by calls alone and then with threads that move bytes beside them.
void run_ranks_in_both_modes(const std::map<std::string, std::string>& environment,
                             const std::function<void(TestRank&)>& body,
                             const std::function<void(Controller&)>& meanwhile = {});

// Calls `done` until it is true. Throws std::runtime_error, naming `what`, after 30 s.
void spin_until(const char* what, const std::function<bool()>& done);

}  // namespace bluecomm::test
