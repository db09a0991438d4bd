#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "engine/operation.h"
#include "trace/counts.h"
#include "trace/recorder.h"

namespace bluecomm {

// Counts what one rank's operations do, and tells a Recorder where there is one.
//
// An operation waits while it lacks something of a peer and nothing can be moved. The
// time until the last of the peers that it lacked had called the operation is counted
// for that peer, as late; the rest for the peer whose data came (or was taken) last. So
// no time is counted twice, and it is counted for the one who held up the operation.
//
// Under the progress lock, all but blocked().
class Account {
 public:
  // What is noted of one call while it runs.
  struct Notes {
    bool waits = false;
    int blocker = -1;  // one of those that it lacks something of
    int caller = -1;   // the last to call the operation during this wait ...
    Clock::time_point since;
    Clock::time_point called;  // ... and when
    // The recorder's numbers of name and kind; 0: not asked for yet.
    std::uint32_t name = 0;
    std::uint32_t kind = 0;
  };

  Account(int size, std::shared_ptr<Recorder> recorder);

  bool records() const { return recorder_ != nullptr; }

  // The program's call is about to return.
  void submitted(Notes& notes, const Operation& operation);
  // A message of `peer` for the first phase has come.
  void header(Notes& notes, const Operation& operation, int peer,
              Clock::time_point now);
  // The operation was given a turn that began at `now`, and `changed` something in it.
  void progress(Notes& notes, Operation& operation, bool changed,
                Clock::time_point now);
  // Bytes were moved since `begin`. Only if records().
  void combined(const Operation& operation, Clock::time_point begin);
  void ended(Notes& notes, const Operation& operation);
  // The program waited for the operation. Any thread.
  void blocked(const Operation& operation, Clock::time_point begin,
               Clock::time_point end);

  // Of all kinds, by Kind; null: nothing was exchanged with that peer.
  using Edges = std::array<EdgeStats, kKindCount>;
  const Edges* edges(int peer) const;
  KindStats kind(Kind kind) const;
  std::chrono::duration<double> age() const { return Clock::now() - since_; }
  void reset();

 private:
  EdgeStats& edge(int peer, Kind kind);
  void end_wait(Notes& notes, const Operation& operation, Clock::time_point now);
  void count_messages(const Operation& operation);
  void record_edges(const Operation& operation, Clock::time_point end);
  Event event(EventType type, const Operation& operation, Clock::time_point begin,
              Clock::time_point end) const;
  Event call_event(EventType type, Notes& notes, const Operation& operation,
                   Clock::time_point end);

  const std::shared_ptr<Recorder> recorder_;
  const std::uint64_t first_operation_;
  std::vector<std::unique_ptr<Edges>> edges_;  // by rank
  std::vector<Event> edge_events_;             // reused by record_edges()
  std::vector<std::uint32_t> edge_places_;     // by rank, in it, from 1; 0: none
  std::array<KindStats, kKindCount> kinds_{};
  std::array<std::atomic<std::int64_t>, kKindCount> blocked_ns_{};
  Clock::time_point since_ = Clock::now();
};

}  // namespace bluecomm
