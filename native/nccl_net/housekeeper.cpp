#include "nccl_net/housekeeper.h"

#include <pthread.h>

#include <exception>

#include "common/quiet_thread.h"

namespace bluecomm::nccl_net {

namespace {

void maintain_one(Maintained& object, Clock::time_point now) {
  if (!object.mutex.try_lock()) return;
  const LockGuard lock(object.mutex, std::adopt_lock);
  try {
    object.maintain(now);
  } catch (const std::exception&) {
    // A missing resource may be available at the next interval.
  }
}

}  // namespace

Housekeeper& Housekeeper::get() {
  static Housekeeper* const only = new Housekeeper;
  return *only;
}

void Housekeeper::add(Maintained& object) {
  const LockGuard lock(mutex_);
  all_.push_back(&object);
  if (run_) return;
  auto run = std::make_unique<Run>();
  run->thread = start_quiet_thread([this, &running = *run] { loop(running); });
  run_ = std::move(run);
}

void Housekeeper::remove(Maintained& object) {
  std::unique_ptr<Run> last;
  {
    const LockGuard lock(mutex_);
    std::erase(all_, &object);
    if (!all_.empty() || !run_) return;
    last = std::move(run_);
    last->stop = true;
    changed_.notify_all();
  }
  last->thread.join();
}

void Housekeeper::loop(const Run& run) {
  pthread_setname_np(pthread_self(), "bluecomm-net");
  UniqueLock lock(mutex_);
  while (!run.stop) {
    const Clock::time_point now = Clock::now();
    for (Maintained* object : all_) maintain_one(*object, now);
    while (!run.stop &&
           changed_.wait_until(lock, now + kBeat) == std::cv_status::no_timeout) {
    }
  }
}

void Housekeeper::before_fork() NO_THREAD_SAFETY_ANALYSIS {
  mutex_.lock();
  // In reverse order of registration: a comm locks its acceptor, which was registered
  // before the comm.
  for (auto object = all_.rbegin(); object != all_.rend(); ++object) {
    (*object)->mutex.lock();
  }
}

void Housekeeper::after_fork(bool in_child) NO_THREAD_SAFETY_ANALYSIS {
  for (Maintained* object : all_) {
    if (in_child) object->abandon();
    object->mutex.unlock();
  }
  if (in_child) {
    all_.clear();
    // This object is not freed, because its thread exists in the parent only and cannot
    // be joined here.
    static_cast<void>(run_.release());
  }
  mutex_.unlock();
}

}  // namespace bluecomm::nccl_net
