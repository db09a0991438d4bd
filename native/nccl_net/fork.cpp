#include "nccl_net/fork.h"

#include <pthread.h>

#include <system_error>

#include "nccl_net/io_thread_pool.h"
#include "nccl_net/plugin.h"

namespace bluecomm::nccl_net {
namespace {

// Locks in the order that all code follows. The housekeeper locks all comms.
void before_fork() NO_THREAD_SAFETY_ANALYSIS {
  Plugin::get().before_fork();
  IoThreadPool::get().before_fork();
  Housekeeper::get().before_fork();
}

void after_fork(bool in_child) NO_THREAD_SAFETY_ANALYSIS {
  Housekeeper::get().after_fork(in_child);
  IoThreadPool::get().after_fork(in_child);
  Plugin::get().after_fork();
}

}  // namespace

void prepare_for_forks() {
  static const int error =
      pthread_atfork(before_fork, [] { after_fork(false); }, [] { after_fork(true); });
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "pthread_atfork");
  }
}

}  // namespace bluecomm::nccl_net
