#pragma once

#include <cstddef>
#include <functional>
#include <map>
#include <string>

#include "common/fd.h"

namespace bluecomm::test {

// One of two processes that play two ranks of NCCL, as its own code sees it.
class Actor {
 public:
  Actor(int number, UniqueFd other, UniqueFd director)
      : number_(number), other_(std::move(other)), director_(std::move(director)) {}

  int number() const { return number_; }  // 0 or 1

  // NCCL's bootstrap: bytes to and from the other actor. Throws std::runtime_error.
  void tell(const void* data, std::size_t nbytes) const;
  void hear(void* data, std::size_t nbytes) const;
  template <typename T>
  T exchange(const T& mine) const {
    tell(&mine, sizeof mine);
    T theirs;
    hear(&theirs, sizeof theirs);
    return theirs;
  }
  // Both have come here.
  void meet() const { static_cast<void>(exchange('m')); }

  // The director is told, or waited for.
  void report() const;
  void await() const;

 private:
  int number_;
  UniqueFd other_;
  UniqueFd director_;
};

// The process of the test, which does things to the actors meanwhile.
class Director {
 public:
  // Waits until the actor reports.
  void await(int actor) const;
  void release(int actor) const;
  void signal(int actor, int number) const;
  // What became of an actor that a signal ends: nothing is expected of it.
  void kill(int actor);

 private:
  friend void perform(const std::map<std::string, std::string>&,
                      const std::function<void(Actor&)>&,
                      const std::function<void(Director&)>&);
  struct Process {
    int pid = -1;
    UniqueFd line;
  };
  Process actors_[2];
};

// Runs `body` in two processes of their own, with these variables set, and `meanwhile`
// here. Fails the test if one of them fails, or does not end.
void perform(const std::map<std::string, std::string>& environment,
             const std::function<void(Actor&)>& body,
             const std::function<void(Director&)>& meanwhile = {});

// perform(), by calls alone and then with threads that move bytes beside them.
void perform_both(const std::map<std::string, std::string>& environment,
                  const std::function<void(Actor&)>& body,
                  const std::function<void(Director&)>& meanwhile = {});

// Calls `done` until it is true. Throws std::runtime_error, naming `what`, after 30 s.
void spin_until(const char* what, const std::function<bool()>& done);

}  // namespace bluecomm::test
