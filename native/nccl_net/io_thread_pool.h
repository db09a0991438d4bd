#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_net/cpus.h"
#include "nccl_net/io_thread.h"

namespace bluecomm::nccl_net {

// The threads that move bytes beside those that call, for as long as there are
// connections. Each connection belongs to one of them.
class IoThreadPool {
 public:
  using Log = std::function<void(const std::string&)>;

  // The process's; never freed, as a fork may come at any time.
  static IoThreadPool& get();

  // Gives it to the next of `threads` threads, at least 1, on CPUs of `cpus`. Throws
  // std::system_error, and it is as it was then: who calls moves its bytes.
  void add(Comm& comm, const CpuSet& cpus, int threads, const Log& log);
  // Returns when no thread does anything with it any more. The last one ends the
  // threads. Nothing happens to one that was not added.
  void remove(Comm& comm);

  // See fork.h.
  void before_fork();
  void after_fork(bool in_child);

 private:
  IoThreadPool() = default;
  IoThread& io_thread(const CpuSet& cpus, int threads, int index, const Log& log);
  void end_if_unused();

  // Before that of a IoThread, and with no mutex of a Comm held.
  std::mutex mutex_;
  std::vector<std::unique_ptr<IoThread>> threads_;
  std::size_t turn_ = 0;
  std::size_t count_ = 0;  // of connections
};

}  // namespace bluecomm::nccl_net
