#pragma once

#include <functional>
#include <list>
#include <utility>

#include "common/mutex.h"

namespace bluecomm::mpi {

// Functions that run when MPI_Finalize begins, while MPI may still be called.
// Thread-safe.
class FinalizeHooks {
 public:
  using Body = std::function<void()>;
  using Hook = std::list<Body>::iterator;

  // Adds `body`, which runs on the thread that calls MPI_Finalize, and must not throw.
  Hook add(Body body) {
    const LockGuard lock(mutex_);
    return bodies_.insert(bodies_.end(), std::move(body));
  }
  // Removes a hook. If the hook is running, returns after it has finished.
  void remove(Hook hook) {
    const LockGuard lock(mutex_);
    bodies_.erase(hook);
  }
  void run() {
    const LockGuard lock(mutex_);
    for (const Body& body : bodies_) body();
  }

 private:
  Mutex mutex_;
  std::list<Body> bodies_ GUARDED_BY(mutex_);
};

}  // namespace bluecomm::mpi
