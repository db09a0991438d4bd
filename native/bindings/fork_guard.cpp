#include "bindings/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <system_error>
#include <vector>

#include "common/mutex.h"

namespace bluecomm::bindings {
namespace {

struct Registry {
  Mutex mutex;
  std::vector<ForkGuard*> guards GUARDED_BY(mutex);
};

Registry& registry() {
  // Never freed, because the process may fork at any time.
  static Registry* const only = new Registry;
  return *only;
}

void before_fork() NO_THREAD_SAFETY_ANALYSIS {
  Registry& all = registry();
  all.mutex.lock();
  for (ForkGuard* guard : all.guards) guard->engine().lock_for_fork();
}

void after_fork_in_parent() NO_THREAD_SAFETY_ANALYSIS {
  Registry& all = registry();
  for (ForkGuard* guard : all.guards) guard->engine().unlock_after_fork();
  all.mutex.unlock();
}

void after_fork_in_child() NO_THREAD_SAFETY_ANALYSIS {
  Registry& all = registry();
  for (ForkGuard* guard : all.guards) {
    guard->enter_child();
    guard->engine().unlock_after_fork();
  }
  all.guards.clear();
  all.mutex.unlock();
}

void install_handlers() {
  static const int error =
      pthread_atfork(before_fork, after_fork_in_parent, after_fork_in_child);
  if (error != 0) {
    throw std::system_error(error, std::generic_category(), "pthread_atfork");
  }
}

}  // namespace

ForkGuard::ForkGuard(Engine& engine) : engine_(engine), owner_(getpid()) {
  install_handlers();
  Registry& all = registry();
  const LockGuard lock(all.mutex);
  all.guards.push_back(this);
}

ForkGuard::~ForkGuard() {
  Registry& all = registry();
  const LockGuard lock(all.mutex);
  std::erase(all.guards, this);
}

void ForkGuard::enter_child() noexcept {
  in_child_ = true;
  engine_.abandon_after_fork();
}

}  // namespace bluecomm::bindings
