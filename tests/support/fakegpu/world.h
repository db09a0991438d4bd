// Everything a process has of the fake: contexts, streams with their threads, events
// and memory. One mutex guards all of it, and tasks run outside of the mutex.
#pragma once

#include <array>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "clock.h"
#include "cuda_abi.h"
#include "memory.h"

namespace fakegpu {

inline constexpr int kMostDevices = 32;

// One cuEventRecord: what its stream had done by then.
struct Recording {
  Clock clock;
  bool done = false;
  std::chrono::steady_clock::time_point when;
};

struct Task {
  std::string label;
  std::function<void()> run;
  std::shared_ptr<Recording> waits_for;
};

}  // namespace fakegpu

struct CUctx_st {
  int device = 0;
  int retained = 0;
};

struct CUstream_st {
  int actor = 0;
  int device = 0;
  std::string name;
  fakegpu::Clock clock;
  std::deque<fakegpu::Task> tasks;
  std::condition_variable ready;  // its thread waits for a task that may start
  std::uint64_t submitted = 0;
  std::uint64_t completed = 0;
  bool destroyed = false;
  bool held = false;       // by a test: its thread starts no task
  bool capturing = false;  // by a test: as if in a graph's capture
  // NCCL operations that a thread of NCCL will put on this stream.
  int expected_launches = 0;
  std::mt19937_64 random;
  int tasks_of_mood = 0;
  bool is_lazy = false;
};

struct CUevent_st {
  int device = 0;
  unsigned flags = 0;
  bool destroyed = false;
  std::shared_ptr<fakegpu::Recording> recording;
};

namespace fakegpu {

struct World {
  std::mutex mutex;
  std::condition_variable changed;  // threads of the host wait for ends of tasks
  int owner = 0;                    // the process that called cuInit
  CUresult broken = kCudaSuccess;
  std::array<CUctx_st, kMostDevices> contexts;
  std::array<CUstream, kMostDevices> legacy_streams{};
  std::set<CUstream> streams;
  std::set<CUevent> events;
  int next_actor = 1;
  Clock host;
  Memory memory;
  // Copies to the host that may start; below 0: any number. Set by tests.
  int copies_to_host_left = -1;
};

World& world();

// The contexts that this thread has pushed; the last is current.
std::vector<CUcontext>& context_stack();
CUcontext current_context();
// Whether this thread runs a function of cuLaunchHostFunc.
bool& in_host_function();

// The functions below need the world's mutex.

CUstream add_stream(int device, const std::string& name);
// Have the delays of a stream, or of all, follow from the seed of the settings.
void seed_stream(CUstream stream);
void seed_streams();
// Returns the stream of a handle, null and 1 being the legacy one of the current
// device; null, after a violation, if it is none.
CUstream find_stream(CUstream handle, const std::string& by);

// Checks what work of a stream accesses; the work happens after all that the host
// knows. Returns false if an access is invalid, and notes nothing then.
bool note_accesses(CUstream stream, const std::string& label,
                   const std::vector<Range>& ranges);
// Puts a task on a stream. Returns false if one of its accesses is invalid, and submits
// nothing then.
bool submit(CUstream stream, Task task, const std::vector<Range>& ranges);
// Has streams start tasks that something other than a new task has kept back.
void wake_streams();
// The host has seen that the stream has done its first `clock` of work.
void host_has_seen(const Clock& clock);

// Reports processes that have still mapped memory that is about to be freed.
void check_unmapped(Allocation& allocation, const std::string& by);

// Waits, without the mutex, until the stream has completed what was submitted to it.
void drain(std::unique_lock<std::mutex>& lock, CUstream stream);

}  // namespace fakegpu
