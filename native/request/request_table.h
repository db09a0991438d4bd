#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
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

  // Takes a request that is done out of the active ones, and reports it if it is
  // watched.
  void end(BaseRequest& request);

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

  // Calls visit(request) for each active request: those that are not done, in the order
  // of their start.
  template <typename Visit>
  void for_each_active(Visit&& visit) const {
    for (BaseRequest* one = oldest_; one != nullptr; one = one->later) visit(*one);
  }
  // Returns the active request that was started first; null if there is none.
  BaseRequest* oldest() const { return oldest_; }
  bool outstanding() const { return oldest_ != nullptr; }
  // Returns a counter that grows when a request has ended or has reached its goal.
  std::uint64_t completions() const { return completions_; }
  // A request has moved bytes, and so may have reached its goal.
  void moved(BaseRequest& request) {
    if (request.reaches_goal()) ++completions_;
  }

  // Moves a deadline to at least `time` from now.
  void extend_deadline(RequestId id, Clock::duration time);
  // Adds `time` to all deadlines.
  void put_off_deadlines(Clock::duration time);
  // Returns a time that is not after the earliest deadline of an active request;
  // Clock::time_point::max() if none is active. It may be that of a request that has
  // ended, until expired() has been called at that time.
  Clock::time_point next_deadline() const { return next_deadline_; }
  std::vector<RequestPtr> expired(Clock::time_point now);

  // Keeps the memory of held() until the process ends, because no transport will report
  // when it has stopped reading.
  void never_free_held() const;

 private:
  void drop_stale();

  std::atomic<RequestId> last_id_ = 0;
  std::unordered_map<RequestId, RequestPtr> requests_;
  // The ends of the list of active requests, which requests_ owns.
  BaseRequest* oldest_ = nullptr;
  BaseRequest* newest_ = nullptr;
  Clock::time_point next_deadline_ = Clock::time_point::max();
  // Requests that have ended, and up to about kMaxStale that have been released since.
  static constexpr std::size_t kMaxStale = 64;
  std::vector<RequestId> finished_;
  std::vector<RequestId> read_;  // those whose memory was read until after their end
  std::vector<RequestPtr> held_;
  std::uint64_t completions_ = 0;
  CompletionQueue completion_queue_;
};

}  // namespace bluecomm
