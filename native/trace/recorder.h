#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <unordered_map>

#include "common/mutex.h"
#include "trace/event.h"

namespace bluecomm {

// Writes what one rank does into a trace file.
//
// The file is mapped, so an event costs no system call, and what has been written
// survives the process, however it ends. Memory is fixed: the newest events take the
// place of the oldest. All methods are thread-safe; add() takes no lock.
class Recorder {
 public:
  struct Place {
    int rank = 0;
    int size = 1;
  };

  // Makes the file `path`, which must not exist, with room for about `nbytes` of events
  // (one at least). Throws std::system_error.
  Recorder(const std::string& path, std::size_t nbytes, Place place);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // The number that stands for `text` in events. All texts that no longer fit into the
  // table share that of a text that says so.
  std::uint32_t name(std::string_view text);

  void add(Event event) noexcept;

  // Operations of one engine are numbered from here on; each engine has its own range.
  std::uint64_t operations_from();

  std::uint64_t capacity() const { return header_->capacity; }
  pid_t owner() const { return header_->pid; }

  // The calling thread, as events name it.
  static std::uint32_t thread();

 private:
  struct TextHash {
    using is_transparent = void;
    std::size_t operator()(std::string_view text) const {
      return std::hash<std::string_view>{}(text);
    }
  };

  std::uint32_t append(std::string_view text) REQUIRES(mutex_);

  std::byte* memory_ = nullptr;
  std::size_t nbytes_ = 0;
  TraceHeader* header_ = nullptr;
  Event* events_ = nullptr;

  Mutex mutex_;
  std::unordered_map<std::string, std::uint32_t, TextHash, std::equal_to<>> names_
      GUARDED_BY(mutex_);
  std::uint64_t engines_ GUARDED_BY(mutex_) = 0;
};

// A point in time as events have it.
inline std::int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace bluecomm
