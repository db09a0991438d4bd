#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <thread>
#include <utility>

#include "common/fd.h"
#include "engine/fair_mutex.h"

namespace bluecomm {

// What Progress moves on. Called under the progress lock only.
class Work {
 public:
  virtual ~Work() = default;

  // Does what can be done now; true when anything changed.
  virtual bool poll() = 0;
  // Something is left to do when no caller drives.
  virtual bool outstanding() const = 0;
  // Grows whenever a caller that waits may find what it waits for.
  virtual std::uint64_t completions() const = 0;
  virtual std::chrono::steady_clock::time_point next_timer() const = 0;
  // At most kMaxWaitFds, the same ones always.
  static constexpr std::size_t kMaxWaitFds = 6;
  virtual std::span<const int> wait_fds() const = 0;
  // As Transport's, for all transports: false, with nothing prepared, when there is
  // work already.
  virtual bool prepare_sleep() = 0;
  virtual void finish_sleep() = 0;
};

// Decides which thread drives the engine.
//
// At most one thread, the leader, polls and sleeps on the transports. A caller that
// waits takes the lead, also from the progress thread while that sleeps, so that a
// blocking call is served by the thread that wants its result. Callers that find
// another caller in the lead sleep until it has completed something or leaves. The
// progress thread leads when no caller does: at once if work is outstanding, else once
// no caller has driven for about a millisecond, so that frequent blocking calls wake no
// second thread. See docs/data-plane.md for the states.
class Progress {
 public:
  using Clock = std::chrono::steady_clock;

  // How often a waiting caller looks whether it was interrupted.
  static constexpr std::chrono::milliseconds kInterruptCheck{100};

  // A leader polls for `spin` before it sleeps.
  Progress(Work& work, std::chrono::microseconds spin);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  void start_thread();
  void stop_thread();
  void set_spin(std::chrono::microseconds spin) { spin_ = spin; }
  // A caller that leads polls for so long before it sleeps, and yields the core
  // between.
  void set_yield(std::chrono::microseconds yield) { yield_ = yield; }

  // Runs `body`, which may leave something to do behind, under the progress lock. Wakes
  // nobody for that: the caller waits next, and else the progress thread looks soon.
  template <typename Body>
  auto run(Body&& body) {
    const Lock lock = mutex_.enter();
    const SleepGuard guard(*this);
    return std::forward<Body>(body)();
  }

  // Runs `body` likewise; the caller goes on with something else, so the progress
  // thread is woken for what is left to do, if nobody drives.
  template <typename Body>
  auto submit(Body&& body) {
    const Lock lock = mutex_.enter();
    const SleepGuard guard(*this);
    auto result = std::forward<Body>(body)();
    wake_napping_thread();
    return result;
  }

  // Runs `body`, which leaves nothing to do behind, under the progress lock.
  template <typename Body>
  auto with_lock(Body&& body) {
    const Lock lock = mutex_.enter();
    return std::forward<Body>(body)();
  }

  // Drives until `done` (called under the lock) is true; false at `deadline`, when
  // `interrupted` (called without the lock, at least every kInterruptCheck) is true, or
  // while suspended.
  bool drive_until(const std::function<bool()>& done, Clock::time_point deadline,
                   const std::function<bool()>& interrupted);

  // From suspend() to resume() nobody drives: callers that wait give up, and the thread
  // sleeps until it is woken.
  void suspend();
  void resume();

  // Keeps everyone out, across a fork.
  std::unique_lock<std::mutex> hold() { return mutex_.enter(); }
  // In the forked child, which has no progress thread.
  void abandon_after_fork() noexcept;

 private:
  using Lock = std::unique_lock<std::mutex>;

  enum class Leader { kNone, kThread, kCaller };
  enum class ThreadState { kRuns, kSleeps, kNaps, kParks, kEnded };

  // Withdraws the announcement of a sleeping leader while its holder changes the
  // engine's state. Its destructor repeats the announcement, or wakes the leader.
  class SleepGuard {
   public:
    explicit SleepGuard(Progress& progress);
    ~SleepGuard();

   private:
    Progress& progress_;
    const bool was_announced_;
  };

  void run_thread();
  void lead_as_thread(Lock& lock);
  void rest(Lock& lock);
  bool check_interrupt(Lock& lock, const std::function<bool()>& interrupted);
  void take_lead();
  void step_down();
  void wake_napping_thread();
  bool sleep(Lock& lock, Leader role, Clock::time_point until);
  bool spin();
  bool yield(Lock& lock);
  bool announce();
  void retract();
  void kick(Leader sleeper);
  void notify_followers();

  Work& work_;
  std::chrono::microseconds spin_;
  std::chrono::microseconds yield_{0};
  FairMutex mutex_;
  UniqueFd caller_doorbell_;  // wakes a caller that leads and sleeps
  UniqueFd thread_doorbell_;  // wakes the progress thread, in the lead or not

  // All below: under mutex_.
  Leader leader_ = Leader::kNone;
  ThreadState thread_state_ = ThreadState::kEnded;
  bool announced_ = false;  // the sleeping leader is woken by the transports
  Clock::time_point wakes_at_{};
  bool napped_ = false;                // the leader's last sleep was long, for nothing
  Clock::time_point crowded_until_{};  // others compute on this core: do not yield
  std::uint64_t tenures_ = 0;          // of callers
  std::uint64_t tenures_seen_ = 0;     // by the thread; 0: none
  std::uint64_t completions_seen_ = 0;
  int followers_ = 0;
  bool stopping_ = false;
  bool suspended_ = false;
  std::condition_variable followers_wake_;
  std::condition_variable thread_wakes_;
  std::thread thread_;
};

}  // namespace bluecomm
