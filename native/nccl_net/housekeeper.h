#pragma once

#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "stream/options.h"

namespace bluecomm::nccl_net {

using stream::Clock;

// The interval at which heartbeats are sent and the peer's heartbeats are checked.
inline constexpr std::chrono::milliseconds kBeat{500};

// An object that needs regular service even while NCCL makes no calls, to answer
// handshakes and to exchange heartbeats.
class Maintained {
 public:
  Maintained() = default;
  Maintained(const Maintained&) = delete;
  Maintained& operator=(const Maintained&) = delete;
  virtual ~Maintained() = default;

  // Protects the whole object: every thread that uses the object holds it.
  Mutex mutex;
  // Does the regular work. If it throws, it is called again at the next interval.
  virtual void maintain(Clock::time_point now) REQUIRES(mutex) = 0;
  // Closes this process's copies of all descriptors without notifying the peer. For a
  // forked child only, where no other thread exists.
  virtual void abandon() noexcept = 0;
};

// One thread that calls maintain() of all registered objects every kBeat, and skips an
// object that another thread is using. The thread exists while any object is
// registered. A forked child starts with neither the objects nor the thread.
class Housekeeper {
 public:
  // Returns the housekeeper of this process. It is never freed, because the process may
  // fork at any time.
  static Housekeeper& get();

  void add(Maintained& object) EXCLUDES(mutex_);
  // Unregisters an object; afterwards maintain() of it is not running and will not be
  // called again. The caller must hold no object's mutex.
  void remove(Maintained& object) EXCLUDES(mutex_);

  // Called around a fork: see fork.h. In between, this thread holds the mutexes of all
  // registered objects.
  void before_fork();
  void after_fork(bool in_child);

 private:
  struct Run {
    std::thread thread;
    bool stop = false;  // protected by mutex_
  };

  Housekeeper() = default;
  void loop(const Run& run) EXCLUDES(mutex_);

  // Locked before an object's mutex.
  Mutex mutex_;
  ConditionVariable changed_;
  std::vector<Maintained*> all_ GUARDED_BY(mutex_);
  std::unique_ptr<Run> run_ GUARDED_BY(mutex_);
};

// Unregisters an object and deletes it.
struct MaintainedDeleter {
  void operator()(Maintained* object) const {
    Housekeeper::get().remove(*object);
    delete object;
  }
};

// Owns an object that the housekeeper maintains.
template <typename T>
using MaintainedPtr = std::unique_ptr<T, MaintainedDeleter>;

// Creates an object and registers it with the housekeeper.
template <typename T, typename... Args>
MaintainedPtr<T> make_maintained(Args&&... args) {
  auto made = std::make_unique<T>(std::forward<Args>(args)...);
  Housekeeper::get().add(*made);
  return MaintainedPtr<T>(made.release());
}

}  // namespace bluecomm::nccl_net
