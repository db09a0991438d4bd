#pragma once

#include <atomic>
#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

#include "common/fd.h"

namespace bluecomm::nccl_net {

class Comm;

// A thread that moves the bytes of the connections given to it, beside the threads that
// call. It sleeps until one of them has something to do, a turn for each in a round.
class IoThread {
 public:
  // Throws std::system_error.
  IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread();

  // False: the thread runs where it likes.
  bool run_on(const std::vector<int>& cpus);

  // Throws std::system_error, and has not taken it then.
  void add(Comm& comm);
  // Returns when the thread is done with it for good. Its mutex may not be held.
  void remove(Comm& comm);
  // Has a turn of one that is due begin. Free to be called with a mutex of a Comm held.
  void wake();

  // Around a fork, by whoever forks.
  void hold() { mutex_.lock(); }
  void let_go() { mutex_.unlock(); }
  // In a forked child, where there is no thread: closes the copies of descriptors.
  void abandon() noexcept;

 private:
  void loop();
  bool turn_all(std::unique_lock<std::mutex>& lock);
  void sleep(std::unique_lock<std::mutex>& lock, int timeout_ms);

  UniqueFd epoll_;
  UniqueFd event_;
  // Whether wake() has to write to event_.
  std::atomic<bool> asleep_ = false;

  // A leaf, like the mutex of a Comm: neither is ever waited for with the other held.
  std::mutex mutex_;
  std::condition_variable turn_over_;
  std::vector<Comm*> comms_;
  Comm* current_ = nullptr;  // that the thread is busy with
  bool stop_ = false;
  std::thread thread_;  // the last to be made
};

}  // namespace bluecomm::nccl_net
