#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "stream/options.h"

namespace bluecomm::nccl_net {

using stream::Clock;

// Heartbeats go out, and are missed, in steps of this.
inline constexpr std::chrono::milliseconds kBeat{500};

// What has to go on although NCCL does not call: answers to handshakes, heartbeats.
class Maintained {
 public:
  Maintained() = default;
  Maintained(const Maintained&) = delete;
  Maintained& operator=(const Maintained&) = delete;
  virtual ~Maintained() = default;

  // Held by whoever does anything with the object.
  std::mutex mutex;
  // With the mutex held. If it throws, it is called again all the same.
  virtual void maintain(Clock::time_point now) = 0;
  // In a forked child: closes its copies of all descriptors, without a word.
  virtual void abandon() noexcept = 0;
};

// One thread that calls maintain() of all that is maintained every kBeat, as long as
// there is anything; an object that another thread is busy with is passed over. Before
// a fork all objects are held, and the child has neither them nor the thread.
class Housekeeper {
 public:
  // The process's; never freed, as a fork may come at any time.
  static Housekeeper& get();

  void add(Maintained& maintained);
  // Returns when maintain() of it is over for good. No mutex of a Maintained may be
  // held.
  void remove(Maintained& maintained);

  // See fork.h. The mutexes of all that is maintained are held meanwhile.
  void before_fork();
  void after_fork(bool in_child);

 private:
  struct Run {
    std::thread thread;
    bool stop = false;
  };

  Housekeeper() = default;
  void loop(const Run& run);

  // Taken before the mutex of a Maintained.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Maintained*> all_;
  std::unique_ptr<Run> run_;
};

struct MaintainedDeleter {
  void operator()(Maintained* maintained) const {
    Housekeeper::get().remove(*maintained);
    delete maintained;
  }
};

// Owns something that is maintained.
template <typename T>
using MaintainedPtr = std::unique_ptr<T, MaintainedDeleter>;

template <typename T, typename... Args>
MaintainedPtr<T> make_maintained(Args&&... args) {
  auto made = std::make_unique<T>(std::forward<Args>(args)...);
  Housekeeper::get().add(*made);
  return MaintainedPtr<T>(made.release());
}

}  // namespace bluecomm::nccl_net
