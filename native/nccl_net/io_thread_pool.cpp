#include "nccl_net/io_thread_pool.h"

#include "nccl_net/comm.h"

namespace bluecomm::nccl_net {

IoThreadPool& IoThreadPool::get() {
  static IoThreadPool* const only = new IoThreadPool;
  return *only;
}

void IoThreadPool::add(Comm& comm, const CpuSet& cpus, int threads, const Log& log) {
  const LockGuard lock(mutex_);
  try {
    IoThread& next = thread(cpus, threads, static_cast<int>(turn_) % threads, log);
    next.add(comm);
    ++turn_;
    ++count_;
    comm.attach(next);
  } catch (...) {
    end_if_unused();
    throw;
  }
}

IoThread& IoThreadPool::thread(const CpuSet& cpus, int threads, int index,
                               const Log& log) {
  while (threads_.size() <= static_cast<std::size_t>(index)) {
    const std::vector<int> own =
        cpus_for(cpus, threads, static_cast<int>(threads_.size()));
    threads_.push_back(std::make_unique<IoThread>());
    if (!threads_.back()->run_on(own)) {
      log("cannot pin an I/O thread to its CPU; it runs on any CPU of the process");
    }
  }
  return *threads_[static_cast<std::size_t>(index)];
}

void IoThreadPool::remove(Comm& comm) {
  IoThread* const io_thread = comm.detach_io_thread();
  if (io_thread == nullptr) return;
  const LockGuard lock(mutex_);
  io_thread->remove(comm);
  --count_;
  end_if_unused();
}

void IoThreadPool::end_if_unused() {
  if (count_ > 0) return;
  threads_.clear();
  turn_ = 0;
}

void IoThreadPool::before_fork() NO_THREAD_SAFETY_ANALYSIS {
  mutex_.lock();
  for (const auto& one : threads_) one->hold();
}

void IoThreadPool::after_fork(bool in_child) NO_THREAD_SAFETY_ANALYSIS {
  for (auto& one : threads_) {
    one->let_go();
    if (!in_child) continue;
    one->abandon();
    // This object is not freed, because its thread exists in the parent only and cannot
    // be joined here.
    static_cast<void>(one.release());
  }
  if (in_child) {
    threads_.clear();
    turn_ = count_ = 0;
  }
  mutex_.unlock();
}

}  // namespace bluecomm::nccl_net
