#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/mutex.h"
#include "nccl_net/cpus.h"
#include "nccl_net/io_thread.h"

namespace bluecomm::nccl_net {

// The I/O threads of this process. They exist while any comm is assigned, and each comm
// belongs to one of them.
class IoThreadPool {
 public:
  using Log = std::function<void(const std::string&)>;

  // Returns the pool of this process. It is never freed, because the process may fork
  // at any time.
  static IoThreadPool& get();

  // Assigns `comm` to the next of `threads` I/O threads (at least 1), pinned to CPUs of
  // `cpus`. Throws std::system_error if the thread cannot be started; `comm` then stays
  // unassigned and calling threads move its data.
  void add(Comm& comm, const CpuSet& cpus, int threads, const Log& log)
      EXCLUDES(mutex_);
  // Unassigns `comm`; afterwards no I/O thread uses it. Removing the last comm ends the
  // threads. Does nothing if `comm` is not assigned.
  void remove(Comm& comm) EXCLUDES(mutex_);

  // Called around a fork: see fork.h.
  void before_fork();
  void after_fork(bool in_child);

 private:
  IoThreadPool() = default;
  IoThread& thread(const CpuSet& cpus, int threads, int index, const Log& log)
      REQUIRES(mutex_);
  void end_if_unused() REQUIRES(mutex_);

  // Locked before the mutex of an IoThread, and never with a comm's mutex held.
  Mutex mutex_;
  std::vector<std::unique_ptr<IoThread>> threads_ GUARDED_BY(mutex_);
  std::size_t turn_ GUARDED_BY(mutex_) = 0;   // comms assigned since the threads exist
  std::size_t count_ GUARDED_BY(mutex_) = 0;  // comms assigned now
};

}  // namespace bluecomm::nccl_net
