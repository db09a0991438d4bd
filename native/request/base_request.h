#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace bluecomm {

using Clock = std::chrono::steady_clock;

// Identifies a request of one engine; 0 is none. Ids are never used again.
using RequestId = std::uint64_t;

// The kinds of requests, which the statistics tell apart: operations, numbered as in
// `Kind` (engine/kinds.h), calls about windows, and messages between two ranks.
enum class RequestKind : std::uint8_t {
  kFirstOperation = 0,
  kWinCreate = 16,
  kWinPut,
  kWinAccumulate,
  kWinGet,
  kWinUpdate,
  kWinMutex,
  kSend,
  kRecv,
};
inline constexpr std::size_t kMaxOperationKinds = 16;
inline constexpr std::size_t kRequestKinds = 24;
static_assert(static_cast<std::size_t>(RequestKind::kWinCreate) == kMaxOperationKinds);
static_assert(static_cast<std::size_t>(RequestKind::kRecv) + 1 == kRequestKinds);

constexpr bool is_operation(RequestKind kind) { return kind < RequestKind::kWinCreate; }
constexpr bool is_point(RequestKind kind) { return kind >= RequestKind::kSend; }

// The notes that WaitStats takes about a running request.
struct WaitNotes {
  bool waits = false;
  int blocker = -1;  // a peer that the request waits for
  int caller = -1;   // the last peer that called the operation during this wait
  Clock::time_point since;
  Clock::time_point called;  // when `caller` called it
  // The recorder's numbers of name and kind; 0 before the first event.
  std::uint32_t name = 0;
  std::uint32_t kind = 0;
};

// Base class of everything that a program can start and wait for: operations, calls
// about windows, and messages between two ranks. docs/data-plane.md describes the life
// of a request.
//
// abort() and expire() end the request, which its RequestTable keeps until release().
//
// A request in a RequestTable is guarded by the engine's progress lock. Id, kind, name,
// rank and start never change and may be read without it.
class BaseRequest {
 public:
  enum class State : std::uint8_t { kQueued, kRunning, kDone };

  // Fields of the request's events in a trace; see trace/event.h.
  struct TraceFields {
    std::uint64_t group = 0;
    std::uint32_t sequence = 0;
    std::uint64_t nbytes = 0;
  };

  virtual ~BaseRequest() = default;
  BaseRequest& operator=(const BaseRequest&) = delete;

  RequestId id() const { return id_; }
  RequestKind kind() const { return kind_; }
  // Returns the public name of the function that was called, such as "win_put".
  virtual std::string_view kind_name() const = 0;
  virtual std::string_view name() const = 0;
  virtual TraceFields trace_fields() const = 0;
  Clock::time_point started() const { return started_; }

  // Returns a text such as "allreduce 'x' on rank 3".
  std::string label() const;

  State state() const { return state_; }
  bool done() const { return state_ == State::kDone; }
  // Returns the outcome, which is final once the request is done.
  const Status& status() const { return status_; }
  bool succeeded() const { return done() && status_.ok(); }

  Clock::time_point deadline() const { return deadline_; }
  void set_deadline(Clock::time_point deadline) { deadline_ = deadline; }

  // The ranks that a request waits for.
  struct Awaited {
    std::set<int> ranks;
    // The action that is expected of those ranks, such as "to answer"; empty if they
    // have to take part in the operation. Without ranks, what it waits for instead.
    std::string wish;
    std::size_t received_bytes = 0;
    std::size_t expected_bytes = 0;
  };
  virtual Awaited awaited() const = 0;

  // Ends the request with a failure, and tells the peers that take part in it. Call it
  // only before the request is done.
  virtual void abort(Status status) = 0;
  // Ends the request because its deadline has passed. Call it only before it is done.
  virtual void expire() = 0;
  // Ends the request on this rank, without a message to any peer.
  virtual void finish(Status status) = 0;

  // Returns whether somebody must move the request on at once, even if the program does
  // not wait for it.
  virtual bool is_urgent() const { return true; }

  // Returns whether a transport reads memory of the request. It may do so even after
  // the request has failed.
  virtual bool holds_memory() const { return false; }

  // Returns how many of the first bytes of the result are final: nothing writes them
  // again. Decreases only to 0, which then also holds after the end: bytes that were
  // final before have been written again.
  virtual std::size_t final_prefix() const { return 0; }
  // A caller waits until final_prefix() has reached `nbytes`.
  void set_goal(std::size_t nbytes) { goal_ = nbytes; }
  // Returns whether the prefix has reached the goal, and then forgets the goal.
  bool reaches_goal() {
    if (goal_ == kNoGoal || final_prefix() < goal_) return false;
    goal_ = kNoGoal;
    return true;
  }

  // Makes this request raise the failure of an earlier one when it has ended.
  void carry(Status failure) { carried_ = std::move(failure); }
  // Changes the status of a request that is done to the failure that it carries, or
  // adds that failure's text if the request has failed itself.
  void raise_carried();

  WaitNotes notes;
  // Whether the RequestTable reports the end of the request in its CompletionQueue.
  bool watched = false;
  // The neighbors in the RequestTable's list of active requests.
  BaseRequest* earlier = nullptr;
  BaseRequest* later = nullptr;

 protected:
  BaseRequest(RequestId id, RequestKind kind, int rank, State state,
              Clock::time_point deadline)
      : state_(state), id_(id), kind_(kind), rank_(rank), deadline_(deadline) {}
  BaseRequest(const BaseRequest&) = default;
  BaseRequest(BaseRequest&&) = default;

  State state_;
  Status status_;

 private:
  const RequestId id_;
  const RequestKind kind_;
  const int rank_;
  const Clock::time_point started_ = Clock::now();
  std::optional<Status> carried_;
  Clock::time_point deadline_;
  static constexpr std::size_t kNoGoal = std::numeric_limits<std::size_t>::max();
  std::size_t goal_ = kNoGoal;
};

}  // namespace bluecomm
