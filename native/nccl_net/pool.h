#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "nccl_net/cpus.h"
#include "nccl_net/mover.h"

namespace bluecomm::nccl_net {

// The threads that move bytes beside those that call, for as long as there are
// connections. Each connection belongs to one of them.
class Pool {
 public:
  using Log = std::function<void(const std::string&)>;

  // The process's; never freed, as a fork may come at any time.
  static Pool& get();

  // Gives it to the next of `threads` threads, at least 1, on CPUs of `place`. Throws
  // std::system_error, and it is as it was then: who calls moves its bytes.
  void add(Comm& comm, const Place& place, int threads, const Log& log);
  // Returns when no thread does anything with it any more. The last one ends the
  // threads. Nothing happens to one that was not added.
  void remove(Comm& comm);

  // See fork.h.
  void before_fork();
  void after_fork(bool in_child);

 private:
  Pool() = default;
  Mover& mover(const Place& place, int threads, int index, const Log& log);
  void end_if_unused();

  // Before that of a Mover, and with no mutex of a Comm held.
  std::mutex mutex_;
  std::vector<std::unique_ptr<Mover>> movers_;
  std::size_t turn_ = 0;
  std::size_t count_ = 0;  // of connections
};

}  // namespace bluecomm::nccl_net
