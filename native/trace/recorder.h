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

// Writes the events of one rank into a trace file.
//
// The file is mapped, so that recording an event needs no system call, and recorded
// events survive a crash of the process. The size is fixed: the newest events overwrite
// the oldest. All methods are thread-safe; add() takes no lock.
class Recorder {
 public:
  // Creates the file `path`, which must not exist, with room for about `nbytes` of
  // events (at least one). Throws std::system_error.
  Recorder(const std::string& path, std::size_t nbytes, int rank, int size);
  ~Recorder();
  Recorder(const Recorder&) = delete;
  Recorder& operator=(const Recorder&) = delete;

  // Returns the number that stands for `text` in events. When the table of names is
  // full, every new text gets the number of a text that says so.
  std::uint32_t name(std::string_view text);

  void add(Event event) noexcept;

  // Returns the first number for the operations of a new engine; each engine of the
  // process has its own range.
  std::uint64_t operations_from();

  std::uint64_t capacity() const { return header_->capacity; }
  pid_t owner() const { return header_->pid; }

  // Returns the number of the calling thread in events.
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

// Converts a point in time to the unit of events.
inline std::int64_t to_ns(std::chrono::steady_clock::time_point time) {
  return std::chrono::nanoseconds(time.time_since_epoch()).count();
}

}  // namespace bluecomm
