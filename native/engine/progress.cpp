// Decides which thread drives the engine; see progress.h. Callers enter through
// drive_until() on threads of the program; progress_threads.cpp has the loops of the
// background thread and of the progress thread. All functions run under the progress
// lock, which is released while a thread sleeps or checks for signals.
#include "engine/progress.h"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <system_error>
#include <utility>

namespace bluecomm {
namespace {

// After a sleep of this length, the awaited event takes longer than a few polls, so the
// leader goes back to sleep without yielding.
constexpr std::chrono::microseconds kLongNap{500};
// A thread that yields the core gets it back after the other threads' turns, which are
// long if they compute. A sleeping thread that is woken gets the core sooner, so after
// a turn longer than kLongTurn the leader does not yield for kCrowded.
constexpr std::chrono::milliseconds kLongTurn{1};
constexpr std::chrono::milliseconds kCrowded{100};

UniqueFd make_doorbell() {
  UniqueFd fd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!fd) throw std::system_error(errno, std::generic_category(), "eventfd");
  return fd;
}

void drain(int fd) {
  std::uint64_t count = 0;
  while (::read(fd, &count, sizeof count) < 0 && errno == EINTR) {
  }
}

// Makes sleeps of the calling thread end on time during its lifetime, if `is_wanted`.
// By default the kernel may end them 50 us late, which is longer than the whole sleep
// of a leader whose transport has to be polled.
class PunctualSleep {
 public:
  explicit PunctualSleep(bool is_wanted)
      : slack_(is_wanted ? prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL) : 0) {
    if (slack_ > 1) prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
  }
  ~PunctualSleep() {
    if (slack_ > 1) {
      prctl(PR_SET_TIMERSLACK, static_cast<unsigned long>(slack_), 0UL, 0UL, 0UL);
    }
  }
  PunctualSleep(const PunctualSleep&) = delete;
  PunctualSleep& operator=(const PunctualSleep&) = delete;

 private:
  const int slack_;
};

timespec to_timespec(Progress::Clock::duration time) {
  using std::chrono::nanoseconds;
  const auto whole = std::chrono::duration_cast<std::chrono::seconds>(time);
  return {
      static_cast<time_t>(whole.count()),
      static_cast<long>(std::chrono::duration_cast<nanoseconds>(time - whole).count())};
}

}  // namespace

Progress::Progress(Work& work, std::chrono::microseconds spin)
    : work_(work),
      spin_(spin),
      caller_doorbell_(make_doorbell()),
      background_doorbell_(make_doorbell()),
      thread_doorbell_(make_doorbell()) {}

Progress::~Progress() { stop_thread(); }

void Progress::close_doorbells() {
  const FairLock lock(mutex_);
  while (leader_ == Leader::kCaller || has_background_) {
    kick(Leader::kCaller);
    kick(Leader::kBackground);
    followers_wake_.notify_all();
    follow(Clock::now() + kInterruptCheck);
  }
  caller_doorbell_.reset();
  background_doorbell_.reset();
  thread_doorbell_.reset();
}

void Progress::suspend(bool thread_goes_on) {
  const FairLock lock(mutex_);
  suspended_ = true;
  thread_parks_ = !thread_goes_on;
  kick(Leader::kThread);
  kick(Leader::kBackground);
  kick(Leader::kCaller);
  followers_wake_.notify_all();
}

void Progress::resume() {
  const FairLock lock(mutex_);
  suspended_ = false;
  thread_parks_ = false;
  thread_wakes_.notify_all();
}

void Progress::abandon_after_fork() noexcept {
  caller_doorbell_.reset();
  background_doorbell_.reset();
  thread_doorbell_.reset();
  announced_ = false;
  leader_ = Leader::kNone;
  thread_state_ = ThreadState::kEnded;
}

// --- SleepGuard ----------------------------------------------------------------------

Progress::SleepGuard::SleepGuard(Progress& progress)
    : progress_(progress),
      was_announced_(progress.announced_),
      completions_(progress.work_.completions()) {
  progress.retract();
}

Progress::SleepGuard::~SleepGuard() {
  progress_.notify_followers();
  if (!was_announced_) return;
  // The progress thread waits for no request in particular.
  const bool may_be_done = progress_.leader_ != Leader::kThread &&
                           progress_.work_.completions() != completions_;
  if (may_be_done || progress_.work_.next_timer() < progress_.wakes_at_ ||
      !progress_.announce()) {
    progress_.kick(progress_.leader_);
  }
}

// --- Callers -------------------------------------------------------------------------

bool Progress::drive_until(const std::function<bool()>& done,
                           Clock::time_point deadline,
                           const std::function<bool()>& interrupted) {
  const FairLock lock(mutex_);
  Clock::time_point next_check = Clock::now() + kInterruptCheck;
  bool leads = false;
  bool stop = false;
  while (!stop && !done()) {
    const Clock::time_point now = Clock::now();
    if (now >= deadline || suspended_) {
      stop = true;
    } else if (now >= next_check) {
      if (leads) step_down();
      leads = false;
      stop = check_interrupt(interrupted);
      next_check = Clock::now() + kInterruptCheck;
    } else if (!leads && leader_ == Leader::kCaller) {
      follow(std::min(deadline, next_check));
    } else {
      if (!leads) take_lead(Leader::kCaller);
      leads = true;
      if (work_.poll() || spin() ||
          (!std::exchange(napped_, false) && yield(Leader::kCaller))) {
        notify_followers();
        mutex_.let_others();
      } else if (!sleep(Leader::kCaller, std::min(deadline, next_check))) {
        next_check = Clock::now();
      }
    }
  }
  if (leads) step_down();
  return done();
}

bool Progress::check_interrupt(const std::function<bool()>& interrupted) {
  const FairUnlock unlocked(mutex_);
  return interrupted && interrupted();
}

// Sleeps until the leader has completed something or leaves.
void Progress::follow(Clock::time_point until) {
  ++followers_;
  mutex_.wait_until(followers_wake_, until);
  --followers_;
}

void Progress::take_lead(Leader role) {
  retract();  // the announcement of the thread that has led until now
  leader_ = role;
  napped_ = false;
  ++tenures_;
}

// Leaves the lead, and wakes a thread that takes it if there is work.
void Progress::step_down() {
  leader_ = Leader::kNone;
  if (followers_ > 0) followers_wake_.notify_all();
  if (!has_background_) {
    wake_thread();
  } else if (background_sleeps_) {
    kick(Leader::kBackground);
  }
}

void Progress::wake_thread() {
  switch (thread_state_) {
    case ThreadState::kSleeps:
      // The thread that took the lead has withdrawn this one's announcement.
      kick(Leader::kThread);
      return;
    case ThreadState::kParks:
      thread_wakes_.notify_one();
      return;
    case ThreadState::kNaps:
      wake_napping_thread();
      return;
    case ThreadState::kRuns:
    case ThreadState::kEnded:
      return;
  }
}

void Progress::wake_napping_thread() {
  const bool naps = thread_state_ == ThreadState::kNaps && leader_ == Leader::kNone;
  if (naps && !has_background_ && work_.outstanding()) thread_wakes_.notify_one();
}

void Progress::notify_followers() {
  if (work_.completions() == completions_seen_) return;
  completions_seen_ = work_.completions();
  if (followers_ > 0) followers_wake_.notify_all();
  // It may sleep as the leader that it was when a caller took the lead.
  if (background_sleeps_ && leader_ != Leader::kBackground) kick(Leader::kBackground);
}

// --- Sleeping ------------------------------------------------------------------------

bool Progress::announce() {
  announced_ = work_.prepare_sleep();
  return announced_;
}

void Progress::retract() {
  if (!announced_) return;
  announced_ = false;
  work_.finish_sleep();
}

int Progress::doorbell_of(Leader role) const {
  switch (role) {
    case Leader::kThread:
      return thread_doorbell_.get();
    case Leader::kBackground:
      return background_doorbell_.get();
    case Leader::kCaller:
    case Leader::kNone:
      break;
  }
  return caller_doorbell_.get();
}

void Progress::kick(Leader sleeper) {
  const int fd = doorbell_of(sleeper);
  const std::uint64_t one = 1;
  while (::write(fd, &one, sizeof one) < 0 && errno == EINTR) {
  }
}

// Polls for a while. Returns whether anything changed.
bool Progress::spin() {
  if (spin_.count() == 0) return false;
  const Clock::time_point end = Clock::now() + spin_;
  while (Clock::now() < end) {
    if (work_.poll()) return true;
  }
  return false;
}

// Polls for a while and yields the core between polls, so that another rank on the same
// core can send the awaited data, which saves a sleep and a wake-up. Ends early if a
// caller takes the lead. Returns whether anything changed.
bool Progress::yield(Leader role) {
  Clock::time_point now = Clock::now();
  if (now < crowded_until_) return false;
  const Clock::time_point end = now + yield_;
  const std::uint64_t completions = work_.completions();
  while (now < end && leader_ == role) {
    {
      const FairUnlock unlocked(mutex_);
      sched_yield();
    }
    const Clock::time_point before = std::exchange(now, Clock::now());
    if (now - before > kLongTurn) crowded_until_ = now + kCrowded;
    // Another thread may have completed the awaited operation meanwhile, and nothing
    // else would end the sleep.
    if (work_.poll() || work_.completions() != completions) return true;
  }
  return false;
}

// Sleeps as the leader. Returns false if a signal interrupted the sleep.
bool Progress::sleep(Leader role, Clock::time_point until) {
  wakes_at_ = std::min(until, work_.next_timer());
  const Clock::duration time = wakes_at_ - Clock::now();
  if (time <= Clock::duration::zero()) {
    // A transport that cannot wake a sleeper must be polled again, or a deadline has
    // passed. The rank that this one waits for may need the core.
    const FairUnlock unlocked(mutex_);
    sched_yield();
    return true;
  }
  if (!announce()) return true;

  const int doorbell = doorbell_of(role);
  std::array<pollfd, 1 + Work::kMaxWaitFds> polled{{{doorbell, POLLIN, 0}}};
  nfds_t count = 1;
  for (const int fd : work_.wait_fds()) polled[count++] = {fd, POLLIN, 0};
  const timespec timeout = to_timespec(std::min<Clock::duration>(time, kForever));
  if (role == Leader::kThread) thread_state_ = ThreadState::kSleeps;
  if (role == Leader::kBackground) background_sleeps_ = true;
  bool interrupted = false;
  bool napped = false;
  {
    const FairUnlock unlocked(mutex_);
    const PunctualSleep punctual(time < kNap);
    const int ready = ::ppoll(polled.data(), count, &timeout, nullptr);
    interrupted = ready < 0 && errno == EINTR;
    napped = ready == 0 && time >= kLongNap;
  }
  if (role == Leader::kThread) thread_state_ = ThreadState::kRuns;
  if (role == Leader::kBackground) background_sleeps_ = false;
  if (polled[0].revents != 0) drain(doorbell);
  if (leader_ == role) {  // otherwise a caller has taken the lead meanwhile
    retract();
    napped_ = napped;
  }
  return !interrupted;
}

}  // namespace bluecomm
