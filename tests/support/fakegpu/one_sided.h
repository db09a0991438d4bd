// One-sided puts of the fake NCCL: the windows of a communicator, and a thread that
// writes what other ranks have put, late, and raises their signals after it.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "clock.h"
#include "comm.h"
#include "operation.h"

struct FakeWindow {
  ncclComm_t comm = nullptr;
  std::uint32_t number = 0;  // among the communicator's, the same on all ranks
  std::uintptr_t begin = 0;
  std::vector<std::uint64_t> sizes;  // of each rank's part, in bytes
  bool is_open = true;
};

namespace fakegpu {

inline constexpr int kOldestOneSided = 22902;
inline constexpr std::uint32_t kNoWindow = ~0U;

// A put on its way.
struct Put {
  struct Head {
    std::uint32_t window = kNoWindow;  // kNoWindow: only a signal
    std::uint32_t is_goodbye = 0;
    std::uint64_t offset = 0;
    std::uint64_t bytes = 0;
  };

  Head head;
  std::vector<std::byte> data;
  bool is_written = false;
};

// The state of another rank's puts into memory of this rank.
struct Source {
  int actor = 0;               // stands for the other rank in clocks
  std::uint64_t signals = 0;   // raised so far
  std::uint64_t expected = 0;  // by the waits of this rank so far
  bool is_lost = false;
  bool said_goodbye = false;
  std::deque<Put> pending;
  Put arriving;
  std::size_t arrived = 0;  // bytes of `arriving`
};

struct OneSided {
  FakeComm mesh;  // sockets of its own, since puts come at any time
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<std::unique_ptr<FakeWindow>> windows;
  std::vector<Source> sources;
  std::atomic<bool> stops = false;
  std::thread receiver;
};

// Registers memory of all ranks, which call it together. Returns null, with the error
// set, if the communicator fails or is aborted.
FakeWindow* register_window(FakeComm& comm, std::uintptr_t begin, std::size_t bytes);

// Returns whether `window` is open and belongs to `comm`.
bool is_window(const FakeComm& comm, const FakeWindow* window);
// Returns the open window that holds this memory, or null.
const FakeWindow* find_window(const FakeComm& comm, std::uintptr_t begin,
                              std::size_t bytes);

// Sends the data of a put, and then its signal. Returns when its memory may be reused,
// which says nothing about the target. False: the communicator is aborted or failed.
bool send_put(FakeComm& comm, const Operation& operation, const std::byte* data);

// Waits until the signals that `operation` names have been raised. False: the
// communicator is aborted or failed.
bool await_signals(FakeComm& comm, const Operation& operation);
// Returns what a stream has seen of other ranks once these signals have been raised.
Clock clock_of_signals(const FakeComm& comm, const Operation& operation);

// Ends the thread of a communicator. The others notice a loss, unless this rank leaves
// in order.
void stop_one_sided(FakeComm& comm, bool in_order);

}  // namespace fakegpu
