#pragma once

#include <chrono>

namespace bluecomm {

// How long a peer may be silent before its watchers accuse it.
struct WatchTiming {
  using Duration = std::chrono::microseconds;

  // A watcher looks this often.
  Duration look{50'000};
  // Each rank shows its watchers this often that it runs.
  Duration beat{100'000};
  // After this silence of a rank on the same machine, the watcher asks the kernel
  // whether its process is stopped.
  Duration stopped{300'000};
  // A rank on another machine may be silent for this long.
  Duration silent{400'000};
  // A watcher that was late itself is patient: its limits are at least this many times
  // its own longest delay within `memory`.
  int delays = 4;
  Duration memory{5'000'000};
  // A watcher whose clock has jumped this far did not run, and accuses nobody for
  // `mute`.
  Duration jump{300'000};
  Duration mute{1'000'000};
  // On a path that has lost packets within `lossy`, the limit is at least this many
  // times the time after which a packet is repeated.
  int repeats = 6;
  Duration lossy{30'000'000};
};

}  // namespace bluecomm
