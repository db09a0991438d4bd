#include "bindings/fork_guard.h"

#include <pthread.h>
#include <unistd.h>

#include <mutex>
#include <system_error>
#include <vector>

namespace bluecomm::bindings {
namespace {

struct Registry {
  std::mutex mutex;
  std::vector<Engine*> engines;  // guarded by mutex
  std::vector<std::unique_lock<std::mutex>>
      holds;  // progress locks, held during a fork
};

Registry& registry() {
  // Never freed, because the process may fork at any time.
  static Registry* const only = new Registry;
  return *only;
}

void before_fork() {
  Registry& all = registry();
  all.mutex.lock();
  for (Engine* engine : all.engines) all.holds.push_back(engine->hold());
}

void after_fork_in_parent() {
  Registry& all = registry();
  all.holds.clear();
  all.mutex.unlock();
}

void after_fork_in_child() {
  Registry& all = registry();
  for (Engine* engine : all.engines) engine->abandon_after_fork();
  all.engines.clear();
  after_fork_in_parent();
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
  const std::scoped_lock lock(registry().mutex);
  registry().engines.push_back(&engine_);
}

ForkGuard::~ForkGuard() {
  const std::scoped_lock lock(registry().mutex);
  std::erase(registry().engines, &engine_);
}

bool ForkGuard::in_child() const { return getpid() != owner_; }

}  // namespace bluecomm::bindings
