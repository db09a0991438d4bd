#pragma once

#include <atomic>
#include <thread>
#include <vector>

#include "common/fd.h"
#include "common/mutex.h"

namespace bluecomm::nccl_net {

class Comm;

// An I/O thread: moves data of the comms assigned to it, in addition to the threads
// that call the plugin. It sleeps in epoll_wait until a comm is due, and then gives
// each due comm one turn per round.
class IoThread {
 public:
  // Throws std::system_error if the thread or its descriptors cannot be created.
  IoThread();
  IoThread(const IoThread&) = delete;
  IoThread& operator=(const IoThread&) = delete;
  ~IoThread();

  // Pins the thread to these CPUs. Returns false if the kernel refuses; the thread then
  // keeps running on any CPU.
  bool run_on(const std::vector<int>& cpus);

  // Assigns a comm. Throws std::system_error, and then leaves it unassigned.
  void add(Comm& comm) EXCLUDES(mutex_);
  // Unassigns a comm; afterwards the thread no longer uses it. The caller must not hold
  // the comm's mutex.
  void remove(Comm& comm) EXCLUDES(mutex_);
  // Wakes the thread to serve comms that are due. Safe to call with a Comm's mutex
  // held.
  void wake();

  // Called around a fork, by the forking thread.
  void hold() ACQUIRE(mutex_) { mutex_.lock(); }
  void let_go() RELEASE(mutex_) { mutex_.unlock(); }
  // Closes the copies of descriptors in a forked child, where the thread does not
  // exist.
  void abandon() noexcept;

 private:
  void loop() EXCLUDES(mutex_);
  bool turn_all() REQUIRES(mutex_);
  void sleep(int timeout_ms) REQUIRES(mutex_);

  UniqueFd epoll_;
  UniqueFd event_;
  // Whether wake() has to write to event_.
  std::atomic<bool> asleep_ = false;

  // No thread waits for this mutex while it holds a comm's mutex, nor the reverse.
  Mutex mutex_;
  ConditionVariable turn_finished_;
  std::vector<Comm*> comms_ GUARDED_BY(mutex_);
  Comm* current_ GUARDED_BY(mutex_) = nullptr;  // the comm whose turn is running
  bool stop_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // last, since it uses all of the above
};

}  // namespace bluecomm::nccl_net
