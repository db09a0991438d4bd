#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <thread>
#include <utility>

#include "common/fd.h"
#include "engine/fair_mutex.h"

namespace bluecomm {

// The work that Progress drives. Its methods are called under the progress lock only.
class Work {
 public:
  virtual ~Work() = default;

  // Does everything that is possible now. Returns whether anything changed.
  virtual bool poll() = 0;
  // Returns whether work would be left to do if no caller drove.
  virtual bool outstanding() const = 0;
  // Returns a counter that grows whenever a waiting caller may be done.
  virtual std::uint64_t completions() const = 0;
  virtual std::chrono::steady_clock::time_point next_timer() const = 0;
  // Returns the descriptors that end a sleep: at most kMaxWaitFds, and always the same.
  static constexpr std::size_t kMaxWaitFds = 6;
  virtual std::span<const int> wait_fds() const = 0;
  // Prepare and end a sleep for all transports, as the methods of Transport do.
  // prepare_sleep() returns false without preparing anything if there is work already.
  virtual bool prepare_sleep() = 0;
  virtual void finish_sleep() = 0;
};

// Decides which thread drives the engine.
//
// At most one thread, the leader, polls and sleeps on the transports. A waiting caller
// takes the lead, even from another thread that sleeps, so that a blocking call is
// served by the thread that wants its result. If another caller leads, the caller
// sleeps until the leader has completed something or leaves. The background thread,
// which waits for requests that others have started, leads while no caller does. The
// progress thread leads when neither does: immediately if work is outstanding,
// otherwise after nobody has driven for about a millisecond, so that frequent blocking
// calls do not wake a second thread. docs/data-plane.md describes the states.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // How often a waiting caller checks whether it was interrupted.
  static constexpr std::chrono::milliseconds kInterruptCheck{100};

  // A leader polls for `spin` before it sleeps.
  Progress(Work& work, std::chrono::microseconds spin);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start_thread();
  void stop_thread();
  // Closes the doorbells, once no thread sleeps. Call it at the end, when no thread has
  // anything to wait for.
  void close_doorbells();
  void set_spin(std::chrono::microseconds spin) { spin_ = spin; }
  // Sets how long a leading caller polls before it sleeps, yielding the core between
  // polls.
  void set_yield(std::chrono::microseconds yield) { yield_ = yield; }

  // Runs `body` under the progress lock. If `body` leaves work behind, no thread is
  // woken: the caller is about to wait and does the work itself, or else the progress
  // thread polls soon.
  template <typename Body>
  auto run(Body&& body) {
    const FairLock lock(mutex_);
    const SleepGuard guard(*this);
    return std::forward<Body>(body)();
  }

  // Like run(), for a caller that continues with something else: if `body` leaves work
  // behind and nobody drives, wakes the progress thread. It does so only if
  // `is_urgent`, called with the result of `body`, returns true; otherwise the thread
  // takes up the work when its nap is over.
  template <typename Body, typename IsUrgent>
  auto submit(Body&& body, IsUrgent&& is_urgent) {
    const FairLock lock(mutex_);
    const SleepGuard guard(*this);
    auto result = std::forward<Body>(body)();
    if (std::forward<IsUrgent>(is_urgent)(result)) wake_napping_thread();
    return result;
  }
  template <typename Body>
  auto submit(Body&& body) {
    return submit(std::forward<Body>(body), [](const auto&) { return true; });
  }

  // Runs `body`, which must not leave work behind, under the progress lock.
  template <typename Body>
  auto with_lock(Body&& body) {
    const FairLock lock(mutex_);
    return std::forward<Body>(body)();
  }

  // Drives until `done`, which is called under the lock, returns true. Returns false at
  // `deadline`, when `interrupted` returns true, or while suspended. `interrupted` is
  // called without the lock, at least every kInterruptCheck.
  bool drive_until(const std::function<bool()>& done, Clock::time_point deadline,
                   const std::function<bool()>& interrupted);

  // Drives as the background thread until `done`, which is called under the lock,
  // returns true, or until `deadline`. Only one thread may do so at a time.
  void drive_in_background(const std::function<bool()>& done,
                           Clock::time_point deadline);

  // Between suspend() and resume() no thread drives: waiting callers give up, and the
  // other threads sleep. With `thread_goes_on` the progress thread drives.
  void suspend(bool thread_goes_on = false);
  void resume();

  // Take and release the progress lock, to keep all other threads out during a fork.
  void lock() ACQUIRE(mutex_) { mutex_.lock(); }
  void unlock() RELEASE(mutex_) { mutex_.unlock(); }
  // Closes the doorbells in a forked child, which has no progress thread. The lock must
  // be held.
  void abandon_after_fork() noexcept REQUIRES(mutex_);

 private:
  // The progress thread takes the lead when nobody has led for this long.
  static constexpr std::chrono::milliseconds kNap{1};
  static constexpr std::chrono::hours kForever{1};

  enum class Leader { kNone, kThread, kBackground, kCaller };
  enum class ThreadState { kRuns, kSleeps, kNaps, kParks, kEnded };

  // Withdraws the announcement of a sleeping leader while its holder changes the
  // engine's state. Its destructor repeats the announcement, or wakes the leader.
  class SleepGuard {
   public:
    explicit SleepGuard(Progress& progress) REQUIRES(progress.mutex_);
    ~SleepGuard();

   private:
    Progress& progress_;
    const bool was_announced_;
    const std::uint64_t completions_;
  };

  void run_thread();
  void lead_as_thread() REQUIRES(mutex_);
  void rest() REQUIRES(mutex_);
  bool check_interrupt(const std::function<bool()>& interrupted) REQUIRES(mutex_);
  void take_lead(Leader role) REQUIRES(mutex_);
  void step_down() REQUIRES(mutex_);
  void wake_thread() REQUIRES(mutex_);
  void wake_napping_thread() REQUIRES(mutex_);
  bool sleep(Leader role, Clock::time_point until) REQUIRES(mutex_);
  bool spin() REQUIRES(mutex_);
  bool yield(Leader role) REQUIRES(mutex_);
  void follow(Clock::time_point until) REQUIRES(mutex_);
  bool announce() REQUIRES(mutex_);
  void retract() REQUIRES(mutex_);
  int doorbell_of(Leader role) const;
  void kick(Leader sleeper);
  void notify_followers() REQUIRES(mutex_);

  Work& work_;
  std::chrono::microseconds spin_;
  std::chrono::microseconds yield_{0};
  FairMutex mutex_;
  UniqueFd caller_doorbell_;      // wakes a sleeping leader that is a caller
  UniqueFd background_doorbell_;  // wakes the sleeping background thread, leader or not
  UniqueFd thread_doorbell_;      // wakes the sleeping progress thread, leader or not

  Leader leader_ GUARDED_BY(mutex_) = Leader::kNone;
  ThreadState thread_state_ GUARDED_BY(mutex_) = ThreadState::kEnded;
  // There is a background thread, which leads when the present leader leaves; it sleeps
  // on the transports, though a caller may have taken the lead.
  bool has_background_ GUARDED_BY(mutex_) = false;
  bool background_sleeps_ GUARDED_BY(mutex_) = false;
  // Transports wake the sleeping leader.
  bool announced_ GUARDED_BY(mutex_) = false;
  Clock::time_point wakes_at_ GUARDED_BY(mutex_){};
  // The leader's last sleep was long and in vain.
  bool napped_ GUARDED_BY(mutex_) = false;
  // Other threads compute on this core until then: do not yield.
  Clock::time_point crowded_until_ GUARDED_BY(mutex_){};
  // Number of times that another thread took the lead, and that number as the progress
  // thread last saw it; 0: none.
  std::uint64_t tenures_ GUARDED_BY(mutex_) = 0;
  std::uint64_t tenures_seen_ GUARDED_BY(mutex_) = 0;
  std::uint64_t completions_seen_ GUARDED_BY(mutex_) = 0;
  int followers_ GUARDED_BY(mutex_) = 0;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool suspended_ GUARDED_BY(mutex_) = false;
  bool thread_parks_ GUARDED_BY(mutex_) = false;  // suspended, with the progress thread
  std::condition_variable followers_wake_;
  std::condition_variable thread_wakes_;
  std::thread thread_;
};

}  // namespace bluecomm
