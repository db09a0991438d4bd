#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "trace/counts.h"
#include "trace/recorder.h"

namespace bluecomm {

// What a program does with windows.
enum class WindowCall { kCreate, kPut, kAccumulate, kGet, kUpdate, kMutex };
inline constexpr std::size_t kWindowCalls = 6;
// win_create, ...
std::string_view call_name(WindowCall kind);

// Counts what one rank's program does with windows, and tells a Recorder where there is
// one. What others do in the rank's memory is counted at their ranks. Thread-safe.
class WindowAccount {
 public:
  using Clock = std::chrono::steady_clock;

  struct Call {
    WindowCall kind = WindowCall::kPut;
    std::string window;
    Clock::time_point began;
    std::uint64_t number = 0;  // from 1
  };

  WindowAccount(int size, std::shared_ptr<Recorder> recorder);

  // Ranks that are told apart.
  int size() const { return static_cast<int>(edges_.size()); }

  Call begin(WindowCall kind, const std::string& window);
  // The program goes on, or waits; others have been asked for the rest.
  void submitted(const Call& call);
  // This thread moved bytes since `begin`.
  void moved(const Call& call, Clock::time_point begin);
  // A value has gone to `peer`, or has come from it.
  enum class Way { kSent, kReceived };
  void exchanged(const Call& call, int peer, Way way, std::size_t nbytes);
  // The program waited for the call's end.
  void blocked(const Call& call, Clock::time_point begin);
  // The call has ended; if `peer` is not negative, that rank was waited for from its
  // beginning until now.
  void ended(const Call& call, Code code, int peer = -1);

  // Of the kinds that were used.
  using Edges = std::vector<std::pair<WindowCall, EdgeStats>>;
  using Kinds = std::vector<std::pair<WindowCall, KindStats>>;
  Edges edges(int peer) const;
  Kinds kinds() const;
  void reset();

 private:
  template <typename Stats>
  using ByCall = std::array<Stats, kWindowCalls>;

  EdgeStats& edge(int peer, WindowCall kind);
  KindStats& kind(WindowCall kind) { return kinds_[static_cast<std::size_t>(kind)]; }
  Event event(EventType type, const Call& call, Clock::time_point begin,
              Clock::time_point end) const;

  const std::shared_ptr<Recorder> recorder_;
  const std::uint64_t first_number_;
  mutable std::mutex mutex_;
  // All below: under mutex_.
  std::uint64_t calls_ = 0;
  std::vector<std::unique_ptr<ByCall<EdgeStats>>> edges_;  // by rank
  ByCall<KindStats> kinds_{};
};

}  // namespace bluecomm
