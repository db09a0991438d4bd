#include "nccl_net/keeper.h"

#include <pthread.h>

#include <exception>

#include "common/quiet_thread.h"

namespace bluecomm::nccl_net {

namespace {

void keep(Kept& kept, Clock::time_point now) {
  try {
    kept.keep(now);
  } catch (const std::exception&) {
    // What is missing now may be there at the next beat.
  }
}

}  // namespace

Keeper& Keeper::get() {
  static Keeper* const only = new Keeper;
  return *only;
}

void Keeper::add(Kept& kept) {
  const std::scoped_lock lock(mutex_);
  all_.push_back(&kept);
  if (run_) return;
  auto run = std::make_unique<Run>();
  run->thread = start_quiet_thread([this, &running = *run] { loop(running); });
  run_ = std::move(run);
}

void Keeper::remove(Kept& kept) {
  std::unique_ptr<Run> last;
  {
    const std::scoped_lock lock(mutex_);
    std::erase(all_, &kept);
    if (!all_.empty() || !run_) return;
    last = std::move(run_);
    last->stop = true;
    changed_.notify_all();
  }
  last->thread.join();
}

void Keeper::loop(const Run& run) {
  pthread_setname_np(pthread_self(), "bluecomm-net");
  std::unique_lock lock(mutex_);
  while (!run.stop) {
    const Clock::time_point now = Clock::now();
    for (Kept* kept : all_) {
      const std::unique_lock busy(kept->mutex, std::try_to_lock);
      if (busy) keep(*kept, now);
    }
    changed_.wait_until(lock, now + kBeat, [&] { return run.stop; });
  }
}

void Keeper::before_fork() {
  mutex_.lock();
  // What was made at a gate takes the gate's mutex, and was added after it.
  for (auto kept = all_.rbegin(); kept != all_.rend(); ++kept) (*kept)->mutex.lock();
}

void Keeper::after_fork(bool in_child) {
  for (Kept* kept : all_) {
    if (in_child) kept->abandon();
    kept->mutex.unlock();
  }
  if (in_child) {
    all_.clear();
    // The thread that it would end is the parent's.
    static_cast<void>(run_.release());
  }
  mutex_.unlock();
}

}  // namespace bluecomm::nccl_net
