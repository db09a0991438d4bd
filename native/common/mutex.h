#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

// Mutexes whose use clang checks at compile time (-Wthread-safety, in `make
// clang-check`). GCC ignores the annotations. They cost nothing at run time.
//
//   class Counter {
//     void add() EXCLUDES(mutex_);        // the caller must not hold mutex_
//     void add_locked() REQUIRES(mutex_); // the caller must hold mutex_
//     Mutex mutex_;
//     int count_ GUARDED_BY(mutex_) = 0;  // read and written under mutex_ only
//   };
//
// The analysis looks at one function at a time: it skips constructors and destructors,
// and it does not know which locks the caller of a lambda holds. A function that it
// cannot follow, such as one that locks a whole array of mutexes, is marked
// NO_THREAD_SAFETY_ANALYSIS.

#if defined(__clang__)
#define BLUECOMM_THREAD_ATTRIBUTE(x) __attribute__((x))
#else
#define BLUECOMM_THREAD_ATTRIBUTE(x)
#endif

#define CAPABILITY(name) BLUECOMM_THREAD_ATTRIBUTE(capability(name))
#define SCOPED_CAPABILITY BLUECOMM_THREAD_ATTRIBUTE(scoped_lockable)
#define GUARDED_BY(mutex) BLUECOMM_THREAD_ATTRIBUTE(guarded_by(mutex))
#define PT_GUARDED_BY(mutex) BLUECOMM_THREAD_ATTRIBUTE(pt_guarded_by(mutex))
#define REQUIRES(...) BLUECOMM_THREAD_ATTRIBUTE(requires_capability(__VA_ARGS__))
#define EXCLUDES(...) BLUECOMM_THREAD_ATTRIBUTE(locks_excluded(__VA_ARGS__))
#define ACQUIRE(...) BLUECOMM_THREAD_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define TRY_ACQUIRE(...) BLUECOMM_THREAD_ATTRIBUTE(try_acquire_capability(__VA_ARGS__))
#define RELEASE(...) BLUECOMM_THREAD_ATTRIBUTE(release_capability(__VA_ARGS__))
#define ASSERT_HELD(...) BLUECOMM_THREAD_ATTRIBUTE(assert_capability(__VA_ARGS__))
#define RETURN_CAPABILITY(x) BLUECOMM_THREAD_ATTRIBUTE(lock_returned(x))
#define NO_THREAD_SAFETY_ANALYSIS BLUECOMM_THREAD_ATTRIBUTE(no_thread_safety_analysis)

namespace bluecomm {

// A std::mutex that clang knows as a capability. Lock it with LockGuard or UniqueLock.
class CAPABILITY("mutex") Mutex {
 public:
  Mutex() = default;
  Mutex(const Mutex&) = delete;
  Mutex& operator=(const Mutex&) = delete;

  void lock() ACQUIRE() { mutex_.lock(); }
  bool try_lock() TRY_ACQUIRE(true) { return mutex_.try_lock(); }
  void unlock() RELEASE() { mutex_.unlock(); }

  // Tells the analysis that the calling thread holds the mutex, for code that it cannot
  // follow such as the body of a lambda. Checks nothing at run time.
  void assert_held() const ASSERT_HELD() {}

 private:
  friend class UniqueLock;
  std::mutex mutex_;
};

// Holds a Mutex for the duration of a scope.
class SCOPED_CAPABILITY LockGuard {
 public:
  explicit LockGuard(Mutex& mutex) ACQUIRE(mutex) : mutex_(mutex) { mutex_.lock(); }
  // Takes over a mutex that the calling thread holds, such as after try_lock().
  LockGuard(Mutex& mutex, std::adopt_lock_t) REQUIRES(mutex) : mutex_(mutex) {}
  ~LockGuard() RELEASE() { mutex_.unlock(); }
  LockGuard(const LockGuard&) = delete;
  LockGuard& operator=(const LockGuard&) = delete;

 private:
  Mutex& mutex_;
};

// Holds a Mutex, which it can also release early and lock again, and with which a
// ConditionVariable can wait. Not movable, but a function may return one that it
// constructs in its return statement. The analysis then checks the callers of the
// function, but not its body:
//   UniqueLock hold() ACQUIRE(mutex_) NO_THREAD_SAFETY_ANALYSIS {
//     return UniqueLock(mutex_);
//   }
class SCOPED_CAPABILITY UniqueLock {
 public:
  explicit UniqueLock(Mutex& mutex) ACQUIRE(mutex) : lock_(mutex.mutex_) {}
  ~UniqueLock() RELEASE() {}
  UniqueLock(const UniqueLock&) = delete;
  UniqueLock& operator=(const UniqueLock&) = delete;

  void lock() ACQUIRE() { lock_.lock(); }
  void unlock() RELEASE() { lock_.unlock(); }
  bool owns_lock() const noexcept { return lock_.owns_lock(); }

 private:
  friend class ConditionVariable;
  std::unique_lock<std::mutex> lock_;
};

// A std::condition_variable that waits with a UniqueLock. It has no waits with a
// predicate, because the analysis could not check the predicate: write
//   while (!ready_) changed_.wait(lock);
class ConditionVariable {
 public:
  void wait(UniqueLock& lock) { changed_.wait(lock.lock_); }

  template <typename Rep, typename Period>
  std::cv_status wait_for(UniqueLock& lock,
                          const std::chrono::duration<Rep, Period>& timeout) {
    return changed_.wait_for(lock.lock_, timeout);
  }

  template <typename Clock, typename Duration>
  std::cv_status wait_until(UniqueLock& lock,
                            const std::chrono::time_point<Clock, Duration>& deadline) {
    return changed_.wait_until(lock.lock_, deadline);
  }

  void notify_one() noexcept { changed_.notify_one(); }
  void notify_all() noexcept { changed_.notify_all(); }

 private:
  std::condition_variable changed_;
};

}  // namespace bluecomm
