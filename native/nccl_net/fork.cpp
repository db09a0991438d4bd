#include "nccl_net/fork.h"

#include <pthread.h>

#include <system_error>

#include "nccl_net/plugin.h"
#include "nccl_net/pool.h"

namespace bluecomm::nccl_net {
namespace {

// In the order in which locks are taken everywhere; the keeper holds all connections.
void before_fork() {
  Plugin::get().before_fork();
  Pool::get().before_fork();
  Keeper::get().before_fork();
}

void after_fork(bool in_child) {
  Keeper::get().after_fork(in_child);
  Pool::get().after_fork(in_child);
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
