#include "nccl_net/pool.h"

#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

Pool& Pool::get() {
  static Pool* const only = new Pool;
  return *only;
}

void Pool::add(Comm& comm, const Place& place, int threads, const Log& log) {
  const std::scoped_lock lock(mutex_);
  try {
    Mover& next = mover(place, threads, static_cast<int>(turn_) % threads, log);
    next.add(comm);
    ++turn_;
    ++count_;
    comm.use(next);
  } catch (...) {
    end_if_unused();
    throw;
  }
}

Mover& Pool::mover(const Place& place, int threads, int index, const Log& log) {
  while (movers_.size() <= static_cast<std::size_t>(index)) {
    const std::vector<int> cpus =
        cpus_for(place, threads, static_cast<int>(movers_.size()));
    movers_.push_back(std::make_unique<Mover>());
    if (!movers_.back()->run_on(cpus)) {
      log("a thread runs on any CPU: it could not be bound to its own");
    }
  }
  return *movers_[static_cast<std::size_t>(index)];
}

void Pool::remove(Comm& comm) {
  Mover* const mover = comm.leave_mover();
  if (mover == nullptr) return;
  const std::scoped_lock lock(mutex_);
  mover->remove(comm);
  --count_;
  end_if_unused();
}

void Pool::end_if_unused() {
  if (count_ > 0) return;
  movers_.clear();
  turn_ = 0;
}

void Pool::before_fork() {
  mutex_.lock();
  for (const auto& one : movers_) one->hold();
}

void Pool::after_fork(bool in_child) {
  for (auto& one : movers_) {
    one->let_go();
    if (!in_child) continue;
    one->abandon();
    // The thread that it would end is the parent's.
    static_cast<void>(one.release());
  }
  if (in_child) {
    movers_.clear();
    turn_ = count_ = 0;
  }
  mutex_.unlock();
}

}  // namespace bluecomm::nccl_net
