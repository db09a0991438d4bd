#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <unordered_map>
#include <vector>

#include "request/base_request.h"
#include "request/completion_queue.h"

namespace bluecomm {

// All requests of one rank from their start to their release: operations and calls
// about windows alike.
//
// Guarded by the engine's progress lock, except next_id() and completion_queue().
class RequestTable {
 public:
  using RequestPtr = std::shared_ptr<BaseRequest>;

  // Returns a new id. Thread-safe.
  RequestId next_id() { return last_id_.fetch_add(1, std::memory_order_relaxed) + 1; }

  // Adds a request that is not done.
  void add(RequestPtr request);
  // Throws std::invalid_argument for an unknown id.
  const RequestPtr& at(RequestId id) const;

  // Removes a request that is done from active(), and reports it if it is watched.
  void end(const BaseRequest& request);

  // Has completion_queue() report the end of a request, once. Returns false if the
  // request is done, so that there is nothing to report. Throws as at().
  bool watch(RequestId id);
  // Thread-safe.
  CompletionQueue& completion_queue() { return completion_queue_; }

  // Forgets a request that is done. Returns false while a transport still reads its
  // memory; take_finished() reports the id when the transport has finished. Throws
  // std::invalid_argument for a request that is not done.
  bool release(RequestId id);

  // Returns the ids of requests that have ended since the last call and whose memory no
  // transport reads, except those already released.
  std::vector<RequestId> take_finished();
  // Returns the ids of requests that have ended while a transport reads their memory.
  std::vector<RequestId> held() const;
  bool has_held() const { return !held_.empty(); }
  // Moves requests whose memory is no longer read from held() to take_finished().
  void check_held();

  // Returns the requests that are not done, in the order of their start.
  const std::deque<RequestPtr>& active() const { return active_; }
  bool outstanding() const { return !active_.empty(); }
  // Returns the number of requests that have ended.
  std::uint64_t completions() const { return completions_; }

  // Moves a deadline to at least `time` from now.
  void extend_deadline(RequestId id, Clock::duration time);
  // Adds `time` to all deadlines.
  void put_off_deadlines(Clock::duration time);
  // Returns the earliest deadline; Clock::time_point::max() if no request is active.
  Clock::time_point next_deadline() const;
  std::vector<RequestPtr> expired(Clock::time_point now) const;

  // Keeps the memory of held() until the process ends, because no transport will report
  // when it has stopped reading.
  void never_free_held() const;

 private:
  std::atomic<RequestId> last_id_ = 0;
  std::unordered_map<RequestId, RequestPtr> requests_;
  std::deque<RequestPtr> active_;
  // The earliest deadline of active_, unless it must be found again.
  mutable std::optional<Clock::time_point> next_deadline_ = Clock::time_point::max();
  std::vector<RequestId> finished_;
  std::vector<RequestPtr> held_;
  std::uint64_t completions_ = 0;
  CompletionQueue completion_queue_;
};

}  // namespace bluecomm
