#pragma once

#include <mutex>

namespace bluecomm {

// A mutex whose holder cannot lock it again before a waiting thread has had it. So a
// leader that moves megabytes in short steps lets other threads in between the steps.
class FairMutex {
 public:
  std::unique_lock<std::mutex> enter() {
    const std::scoped_lock entered(entry_);
    return std::unique_lock(mutex_);
  }

  // Releases the lock, and takes it again after the threads that are waiting for it.
  void let_others(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    lock = enter();
  }

 private:
  std::mutex entry_;  // held while waiting for mutex_
  std::mutex mutex_;
};

}  // namespace bluecomm
