#pragma once

#include <cstdint>

namespace bluecomm {

// The state of a process of this machine, as the kernel reports it.
enum class ProcessState : std::uint8_t {
  kUnknown,  // it is not visible in /proc
  kRuns,     // it runs, or waits for something
  kStopped,  // by SIGSTOP or Ctrl-Z
  kEnded,
};

// Looks at one process in /proc. Remembers when the process began, so that a later
// process with the same number is not taken for it.
class ProcessWatch {
 public:
  ProcessWatch() = default;
  // `pid` must be a process of this machine, or 0.
  explicit ProcessWatch(int pid);

  // Returns kUnknown if the process was not visible when the watch began.
  ProcessState state() const;

 private:
  int pid_ = 0;
  std::uint64_t began_ = 0;  // in ticks of the kernel; 0: not visible
};

}  // namespace bluecomm
