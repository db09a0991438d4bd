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
class Kept {
 public:
  Kept() = default;
  Kept(const Kept&) = delete;
  Kept& operator=(const Kept&) = delete;
  virtual ~Kept() = default;

  // Held by whoever does anything with the object.
  std::mutex mutex;
  // With the mutex held. If it throws, it is called again all the same.
  virtual void keep(Clock::time_point now) = 0;
  // In a forked child: closes its copies of all descriptors, without a word.
  virtual void abandon() noexcept = 0;
};

// One thread that calls keep() of all that is kept every kBeat, as long as there is
// anything; an object that another thread is busy with is passed over. Before a fork
// all objects are held, and the child has neither them nor the thread.
class Keeper {
 public:
  // The process's; never freed, as a fork may come at any time.
  static Keeper& get();

  void add(Kept& kept);
  // Returns when keep() of it is over for good. No mutex of a Kept may be held.
  void remove(Kept& kept);

  // See fork.h. The mutexes of all that is kept are held meanwhile.
  void before_fork();
  void after_fork(bool in_child);

 private:
  struct Run {
    std::thread thread;
    bool stop = false;
  };

  Keeper() = default;
  void loop(const Run& run);

  // Taken before the mutex of a Kept.
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Kept*> all_;
  std::unique_ptr<Run> run_;
};

struct Release {
  void operator()(Kept* kept) const {
    Keeper::get().remove(*kept);
    delete kept;
  }
};

// Owns something that is kept.
template <typename T>
using KeptPtr = std::unique_ptr<T, Release>;

template <typename T, typename... Args>
KeptPtr<T> make_kept(Args&&... args) {
  auto made = std::make_unique<T>(std::forward<Args>(args)...);
  Keeper::get().add(*made);
  return KeptPtr<T>(made.release());
}

}  // namespace bluecomm::nccl_net
