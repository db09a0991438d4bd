#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "common/mutex.h"

namespace bluecomm {

// A mutex whose holder cannot lock it again before a waiting thread has held it. So a
// leader that moves megabytes in short steps lets other threads in between the steps.
class CAPABILITY("mutex") FairMutex {
 public:
  void lock() ACQUIRE() {
    const std::scoped_lock entered(entry_);
    mutex_.lock();
  }
  void unlock() RELEASE() { mutex_.unlock(); }

  // Releases the lock, and takes it again after the threads that are waiting for it.
  void let_others() REQUIRES(this) {
    unlock();
    lock();
  }

  // These functions release the lock while they wait for `changed`.
  void wait(std::condition_variable& changed) REQUIRES(this) {
    std::unique_lock lock(mutex_, std::adopt_lock);
    changed.wait(lock);
    lock.release();
  }
  void wait_until(std::condition_variable& changed,
                  std::chrono::steady_clock::time_point deadline) REQUIRES(this) {
    std::unique_lock lock(mutex_, std::adopt_lock);
    changed.wait_until(lock, deadline);
    lock.release();
  }

 private:
  std::mutex entry_;  // held while waiting for mutex_
  std::mutex mutex_;
};

// Holds a FairMutex for the duration of a scope.
class SCOPED_CAPABILITY FairLock {
 public:
  explicit FairLock(FairMutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  ~FairLock() RELEASE() { mutex_.unlock(); }
  FairLock(const FairLock&) = delete;
  FairLock& operator=(const FairLock&) = delete;

 private:
  FairMutex& mutex_;
};

// Releases a FairMutex for the duration of a scope, and takes it again at the end.
class SCOPED_CAPABILITY FairUnlock {
 public:
  explicit FairUnlock(FairMutex& mutex) RELEASE(mutex) : mutex_(mutex) {
    mutex_.unlock();
  }
  ~FairUnlock() RELEASE() { mutex_.lock(); }
  FairUnlock(const FairUnlock&) = delete;
  FairUnlock& operator=(const FairUnlock&) = delete;

 private:
  FairMutex& mutex_;
};

}  // namespace bluecomm
