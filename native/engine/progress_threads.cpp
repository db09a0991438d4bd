// The loops of the two threads that drive the engine while no caller does: the
// background thread, which belongs to the program, and the progress thread. See
// progress.h; the functions run under the progress lock.
#include <pthread.h>
#include <signal.h>

#include <chrono>
#include <functional>
#include <thread>
#include <utility>

#include "engine/progress.h"

namespace bluecomm {

// --- Background thread ---------------------------------------------------------------

void Progress::drive_in_background(const std::function<bool()>& done,
                                   Clock::time_point deadline) {
  const FairLock lock(mutex_);
  has_background_ = true;
  while (!done() && Clock::now() < deadline) {
    if (suspended_) {
      if (leader_ == Leader::kBackground) leader_ = Leader::kNone;
      has_background_ = false;  // so that the progress thread may lead
      wake_thread();
      mutex_.wait_until(thread_wakes_, deadline);
      has_background_ = true;
    } else if (leader_ == Leader::kCaller) {
      follow(deadline);
    } else {
      if (leader_ != Leader::kBackground) take_lead(Leader::kBackground);
      if (work_.poll() || spin() ||
          (!std::exchange(napped_, false) && yield(Leader::kBackground))) {
        notify_followers();
        mutex_.let_others();
      } else if (leader_ == Leader::kBackground) {
        sleep(Leader::kBackground, deadline);
      }
    }
  }
  has_background_ = false;
  // While there was a background thread, nobody else woke the progress thread.
  if (leader_ == Leader::kBackground || leader_ == Leader::kNone) step_down();
}

// --- Progress thread -----------------------------------------------------------------

void Progress::start_thread() {
  const FairLock lock(mutex_);
  if (thread_.joinable()) return;
  stopping_ = false;
  thread_state_ = ThreadState::kRuns;
  // Signals are delivered to the program's own threads.
  sigset_t all;
  sigset_t before;
  sigfillset(&all);
  pthread_sigmask(SIG_SETMASK, &all, &before);
  thread_ = std::thread([this] { run_thread(); });
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

void Progress::stop_thread() {
  {
    const FairLock lock(mutex_);
    stopping_ = true;
    thread_wakes_.notify_all();
    kick(Leader::kThread);
  }
  if (thread_.joinable()) thread_.join();
}

void Progress::run_thread() {
  pthread_setname_np(pthread_self(), "bluecomm");
  const FairLock lock(mutex_);
  while (!stopping_) {
    if (thread_parks_) {
      thread_state_ = ThreadState::kParks;
      mutex_.wait(thread_wakes_);
      thread_state_ = ThreadState::kRuns;
    } else if (leader_ == Leader::kNone &&
               (work_.outstanding() || tenures_ == tenures_seen_)) {
      lead_as_thread();
    } else {
      rest();
    }
  }
  thread_state_ = ThreadState::kEnded;
}

void Progress::lead_as_thread() {
  leader_ = Leader::kThread;
  while (!stopping_ && !thread_parks_ && leader_ == Leader::kThread) {
    const bool changed = work_.poll() || spin();
    notify_followers();
    if (changed) {
      mutex_.let_others();
    } else {
      sleep(Leader::kThread, Clock::now() + kForever);
    }
  }
  if (leader_ == Leader::kThread) leader_ = Leader::kNone;
}

// Lets others drive. Naps while they come and go; parks until it is woken while one
// thread stays in the lead.
void Progress::rest() {
  if (leader_ != Leader::kNone && tenures_ == tenures_seen_) {
    thread_state_ = ThreadState::kParks;
    mutex_.wait(thread_wakes_);
    tenures_seen_ = 0;  // the next rest is a nap, unless work is left
  } else {
    tenures_seen_ = tenures_;
    thread_state_ = ThreadState::kNaps;
    mutex_.wait_until(thread_wakes_, Clock::now() + kNap);
  }
  thread_state_ = ThreadState::kRuns;
}

}  // namespace bluecomm
