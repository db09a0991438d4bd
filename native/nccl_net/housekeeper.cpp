#include "nccl_net/housekeeper.h"

#include <pthread.h>

#include <exception>

#include "common/quiet_thread.h"

namespace bluecomm::nccl_net {

namespace {

void maintain(Maintained& maintained, Clock::time_point now) {
  try {
    maintained.maintain(now);
  } catch (const std::exception&) {
    // What is missing now may be there at the next beat.
  }
}

}  // namespace

Housekeeper& Housekeeper::get() {
  static Housekeeper* const only = new Housekeeper;
  return *only;
}

void Housekeeper::add(Maintained& maintained) {
  const std::scoped_lock lock(mutex_);
  all_.push_back(&maintained);
  if (run_) return;
  auto run = std::make_unique<Run>();
  run->thread = start_quiet_thread([this, &running = *run] { loop(running); });
  run_ = std::move(run);
}

void Housekeeper::remove(Maintained& maintained) {
  std::unique_ptr<Run> last;
  {
    const std::scoped_lock lock(mutex_);
    std::erase(all_, &maintained);
    if (!all_.empty() || !run_) return;
    last = std::move(run_);
    last->stop = true;
    changed_.notify_all();
  }
  last->thread.join();
}

void Housekeeper::loop(const Run& run) {
  pthread_setname_np(pthread_self(), "bluecomm-net");
  std::unique_lock lock(mutex_);
  while (!run.stop) {
    const Clock::time_point now = Clock::now();
    for (Maintained* maintained : all_) {
      const std::unique_lock busy(maintained->mutex, std::try_to_lock);
      if (busy) maintain(*maintained, now);
    }
    changed_.wait_until(lock, now + kBeat, [&] { return run.stop; });
  }
}

void Housekeeper::before_fork() {
  mutex_.lock();
  // What was made at a acceptor takes the acceptor's mutex, and was added after it.
  for (auto maintained = all_.rbegin(); maintained != all_.rend(); ++maintained)
    (*maintained)->mutex.lock();
}

void Housekeeper::after_fork(bool in_child) {
  for (Maintained* maintained : all_) {
    if (in_child) maintained->abandon();
    maintained->mutex.unlock();
  }
  if (in_child) {
    all_.clear();
    // The thread that it would end is the parent's.
    static_cast<void>(run_.release());
  }
  mutex_.unlock();
}

}  // namespace bluecomm::nccl_net
