#pragma once

#include <array>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "common/mutex.h"
#include "request/base_request.h"
#include "trace/counts.h"
#include "trace/recorder.h"

namespace bluecomm {

// Counts what one rank's requests do and which peers they wait for, and writes the same
// to a Recorder if there is one.
//
// An operation waits while it needs something from peers and no data can be moved. The
// time until the last of these peers has called the operation counts for that peer, as
// late. The remaining time counts for the peer whose data arrived (or was taken) last.
// So no time is counted twice, and all of it counts for the peer that held up the
// operation.
//
// Operations are counted under the engine's progress lock, so their calls must hold it,
// except blocked(). Calls about windows may be counted by any thread, because those
// that reach shared memory take no progress lock: this class locks their counters.
class WaitStats {
 public:
  // `recorder` may be null.
  WaitStats(int size, std::shared_ptr<Recorder> recorder);
  ~WaitStats();
  WaitStats(const WaitStats&) = delete;
  WaitStats& operator=(const WaitStats&) = delete;

  int size() const { return static_cast<int>(edges_.size()); }
  bool records() const { return recorder_ != nullptr; }

  // Called when the program's call is about to return, or to wait for other ranks.
  void submitted(BaseRequest& request);
  // Called when the first message of `peer` for an operation has arrived.
  void header(BaseRequest& request, int peer, Clock::time_point now);
  // Called when a peer has told at `now` which peer was the last to call the operation;
  // -1 if this rank was.
  void told_caller(BaseRequest& request, int caller, Clock::time_point now);
  // Called when the turn that began at `now` has moved bytes of the request.
  void moved(BaseRequest& request, Clock::time_point now);
  // Called when that turn has moved no bytes, because `blocker` has not sent or taken
  // its data.
  void stalled(BaseRequest& request, int blocker, Clock::time_point now);
  // Called when the calling thread has copied or combined bytes since `begin`. Does
  // nothing unless records().
  void combined(const BaseRequest& request, Clock::time_point begin);
  // Called when the request has ended. If `awaited` is not negative, the request has
  // waited for that peer from its start until now.
  void ended(BaseRequest& request, int awaited = -1);
  // Called when the program has waited for the request since `begin`. Thread-safe.
  void blocked(const BaseRequest& request, Clock::time_point begin);

  enum class Direction { kSent, kReceived };
  // Called when the value of a window has been sent to, or received from, `peer`.
  void exchanged(const BaseRequest& request, int peer, Direction direction,
                 std::size_t nbytes);
  // Called when a request to a lost rank has ended without effect, and when own values
  // have taken the weights of `count` lost ranks. Thread-safe.
  void dropped() { dropped_.fetch_add(1, std::memory_order_relaxed); }
  void replaced(std::uint64_t count) {
    if (count > 0) replaced_.fetch_add(count, std::memory_order_relaxed);
  }

  // Called when an operation or a send has started while `nbytes` of its input were
  // still being copied from a device. Thread-safe.
  void overlapped(std::size_t nbytes) {
    overlapped_.fetch_add(nbytes, std::memory_order_relaxed);
  }

  // Counts the messages of an operation. `for_each_message(visit)` calls
  // visit(peer, messages sent, messages received, nbytes) for each.
  template <typename ForEachMessage>
  void exchanged(const BaseRequest& operation, ForEachMessage&& for_each_message) {
    for_each_message(
        [&](int peer, unsigned sent, unsigned received, std::size_t nbytes) {
          add_message(edge(peer, operation.kind()), sent, received, nbytes);
        });
    if (!recorder_) return;
    for_each_message(
        [&](int peer, unsigned sent, unsigned received, std::size_t nbytes) {
          add_edge_event(operation, peer, sent, received, nbytes);
        });
    record_edge_events();
  }

  // Return the counters since the last reset(), for the kinds that were used. The
  // progress lock must be held.
  using Edges = std::vector<std::pair<RequestKind, EdgeStats>>;
  using Kinds = std::vector<std::pair<RequestKind, KindStats>>;
  Edges edges(int peer) const;
  Kinds kinds() const;
  std::uint64_t dropped_count() const {
    return dropped_.load(std::memory_order_relaxed);
  }
  std::uint64_t replaced_count() const {
    return replaced_.load(std::memory_order_relaxed);
  }
  std::uint64_t overlapped_count() const {
    return overlapped_.load(std::memory_order_relaxed);
  }
  std::chrono::duration<double> age() const { return Clock::now() - since_; }
  void reset();

 private:
  using EdgesByKind = std::array<EdgeStats, kRequestKinds>;

  static std::size_t index_of(RequestKind kind) {
    return static_cast<std::size_t>(kind);
  }
  static void add_message(EdgeStats& edge, unsigned sent, unsigned received,
                          std::size_t nbytes);

  // Runs `body`, which changes counters of `kind`, under the lock that guards them.
  template <typename Body>
  void count(RequestKind kind, Body&& body) {
    if (is_operation(kind)) {  // the caller holds the progress lock
      body();
      return;
    }
    const LockGuard lock(window_mutex_);
    body();
  }

  EdgeStats& edge(int peer, RequestKind kind);
  void end_wait(BaseRequest& request, Clock::time_point now);
  void add_edge_event(const BaseRequest& operation, int peer, unsigned sent,
                      unsigned received, std::size_t nbytes);
  void record_edge_events();
  Event event(EventType type, const BaseRequest& request, Clock::time_point begin,
              Clock::time_point end) const;
  Event call_event(EventType type, BaseRequest& request, Clock::time_point end);

  const std::shared_ptr<Recorder> recorder_;
  const std::uint64_t first_id_;  // of this engine's requests in the trace
  // By rank and kind; null where nothing has been counted. The pointers are never
  // reset. A counter of an operation's kind is guarded by the progress lock, others by
  // `window_mutex_`.
  std::vector<std::atomic<EdgesByKind*>> edges_;
  std::array<KindStats, kRequestKinds> kinds_{};  // guarded likewise
  std::array<std::atomic<std::int64_t>, kRequestKinds> blocked_ns_{};
  std::atomic<std::uint64_t> dropped_ = 0;
  std::atomic<std::uint64_t> replaced_ = 0;
  std::atomic<std::uint64_t> overlapped_ = 0;
  mutable Mutex window_mutex_;
  // Reused by the events of each operation, under the progress lock.
  std::vector<Event> edge_events_;
  std::vector<std::uint32_t> edge_event_of_;  // by rank: position + 1; 0 is none
  Clock::time_point since_ = Clock::now();
};

}  // namespace bluecomm
