#pragma once

#include <array>
#include <chrono>
#include <functional>
#include <map>
#include <span>
#include <vector>

#include "common/process_state.h"
#include "engine/membership/suspicions.h"
#include "engine/membership/watch_timing.h"

namespace bluecomm {

// Watches other ranks: takes the times at which something has arrived from them, and
// returns evidence against those that are silent for too long. docs/membership.md has
// the rules. Pure: it has no clock and asks the kernel through a function. Not
// thread-safe.
class Watcher {
 public:
  using Time = std::chrono::steady_clock::time_point;
  using Duration = WatchTiming::Duration;

  struct Finding {
    int rank = 0;
    Evidence evidence = Evidence::kSilent;
    Duration silence{};
  };
  // Returns the state of the process of a rank on this machine.
  using Look = std::function<ProcessState(int rank)>;

  explicit Watcher(Time now, const WatchTiming& timing = {});

  // Starts to watch a rank, unless it is watched already. It may be silent until the
  // first hear(), because it may still be starting. `is_here`: on this machine.
  void watch(int rank, bool is_here);
  void ignore(int rank) { watched_.erase(rank); }
  // The link to a rank of this machine has ended; watches for the end of its process.
  void end(int rank);

  // Something has arrived from a rank.
  void hear(int rank, Time now);
  // The path to a rank has lost packets, which are repeated after `repeat_after`.
  void note_losses(int rank, Duration repeat_after, Time now);
  // Notes that this process runs. To be called at each turn, before look(). Returns
  // whether the process had not run for so long that it accuses nobody for a while.
  bool note_turn(Time now);

  // Returns the evidence that there is now, and the same again at the next call while
  // it holds. To be called at `due`, the time that the caller has asked to be woken at.
  std::vector<Finding> look(Time now, Time due, const Look& state_of);

  // Returns for how long this process itself did not run, if the other ranks may still
  // exclude it for that reason; otherwise 0.
  Duration absence() const { return absence_; }
  // Returns the least silence of a rank on another machine that counts as evidence.
  Duration limit(int rank, Time now) const;

 private:
  struct Watched {
    bool is_here = false;
    bool was_heard = false;
    bool has_ended = false;  // its link
    Time heard_at;
    Time lossy_until;
    Duration repeat_after{};
  };

  void note_delay(Duration delay, Time now);
  Duration patience(Time now) const;

  const WatchTiming timing_;
  std::map<int, Watched> watched_;
  Time ran_at_;
  Time mute_until_;
  Duration absence_{};
  // The longest delays of this process, by fifths of `memory`.
  struct Delay {
    Time since;
    Duration longest{};
  };
  std::array<Delay, 6> delays_{};
  std::size_t newest_ = 0;
};

// The plan of who watches whom. Ranks ascend.
struct WatchPlan {
  std::vector<int> watched;   // by one rank
  std::vector<int> watchers;  // of that rank
};

// Returns the plan for `rank`. A rank watches the others on its machine, and one on
// each of the next 8 machines, so that the ranks of a machine share the work.
// `machine_of` has the machine of each rank, or -1 for ranks that are no members.
WatchPlan plan_watch(int rank, std::span<const int> machine_of);

}  // namespace bluecomm
