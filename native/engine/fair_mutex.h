#pragma once

#include <mutex>

namespace bluecomm {

// A mutex whose holder cannot take it again past a thread that waits: a rank that moves
// megabytes in short steps lets others in between them.
class FairMutex {
 public:
  std::unique_lock<std::mutex> enter() {
    const std::scoped_lock entered(entry_);
    return std::unique_lock(mutex_);
  }

  // Lets in who waits, and enters again after them.
  void let_others(std::unique_lock<std::mutex>& lock) {
    lock.unlock();
    lock = enter();
  }

 private:
  std::mutex entry_;  // held while waiting for mutex_
  std::mutex mutex_;
};

}  // namespace bluecomm
