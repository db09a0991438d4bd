#pragma once

#include <functional>
#include <list>
#include <mutex>
#include <utility>

namespace bluecomm::mpi {

// What is to be done when MPI_Finalize begins, while MPI may still be called.
// Thread-safe.
class FinalizeHooks {
 public:
  using Body = std::function<void()>;
  using Hook = std::list<Body>::iterator;

  // `body` runs on the thread that calls MPI_Finalize, and must not throw.
  Hook add(Body body) {
    const std::lock_guard lock(mutex_);
    return bodies_.insert(bodies_.end(), std::move(body));
  }
  // Returns when it does not run any more.
  void remove(Hook hook) {
    const std::lock_guard lock(mutex_);
    bodies_.erase(hook);
  }
  void run() {
    const std::lock_guard lock(mutex_);
    for (const Body& body : bodies_) body();
  }

 private:
  std::mutex mutex_;
  std::list<Body> bodies_;
};

}  // namespace bluecomm::mpi
