#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "request/base_request.h"
#include "request/request_peers.h"
#include "request/request_table.h"
#include "request/wait_stats.h"
#include "window/message.h"
#include "window/window.h"
#include "window/window_arrival.h"
#include "window/window_request.h"

namespace bluecomm {

// A value to leave with out-neighbors: each target gets its weight times x, and times p
// if `with_p`.
struct WindowPut {
  std::span<const std::byte> x;
  Window::Weights targets;
  bool accumulates = false;
  bool with_p = false;
  double p = 0.0;
  // For device values, and targets that share no memory: whether the back slots have
  // the sums with the values that are pending there.
  bool is_sum = false;
  // For device values: further targets, at which Window::publish_sum() has
  // already published the sum. They only count as bytes of the call.
  std::vector<int> summed = {};
};

// The in-neighbors whose own values are read, each with its weight.
struct WindowGet {
  Window::Weights sources;
  bool with_p = false;
};

// All windows of a rank: sends the program's requests to the ranks that own the
// windows, and serves the requests of other ranks for its own windows without involving
// the program.
//
// A request has a part for each rank that is asked. Between two ranks and for one
// window, one put, accumulate or get is under way at a time and the others queue at the
// asker, so a window needs no memory but its own. An answer ends a part, so a put that
// is done has taken effect at the target. A part is numbered by an id of the request
// table; the first part of a request has the request's own id.
//
// By default, parts of lost ranks fail. In a job that survives losses they end without
// effect, and windows go on without lost ranks; see service_losses.cpp.
//
// Starts no thread and never waits. Guarded by the engine's progress lock.
class WindowService final : public WindowRequestHost {
 public:
  using RequestPtr = std::shared_ptr<WindowRequest>;
  using WindowPtr = std::shared_ptr<Window>;

  // Given in a job that survives losses.
  struct Survival {
    // Returns whether the process of a lost rank certainly writes no more into memory
    // of this machine.
    std::function<bool(int rank)> has_ended;
  };

  // `job` is a hash of the job's name.
  WindowService(int rank, std::uint64_t job, std::uint32_t epoch,
                const RequestPeers& peers, RequestTable& requests, WaitStats& stats,
                std::optional<Survival> survival = {})
      : rank_(rank),
        job_(job),
        epoch_(epoch),
        peers_(peers),
        requests_(requests),
        stats_(stats),
        survival_(std::move(survival)) {}

  // Registers a window. The request is done when all neighbors have registered it, too.
  // Throws std::invalid_argument if the id is known.
  RequestPtr open(WindowPtr window, Clock::time_point deadline);
  // Forgets a window. Throws std::invalid_argument while requests of this rank for it
  // are under way.
  void remove(const Window& window);
  // Called when all ranks that are left have removed a window. In a job that survives
  // losses, the memory of removed windows is kept until then, and as long as a lost
  // rank may still write into it.
  void release_removed();
  // Returns whether a request of this rank for the window is under way.
  bool is_busy(const Window& window) const { return find_part(window) != nullptr; }

  bool has_lost(int rank) const { return detached_.contains(rank); }

  // Shares the mailboxes of `sources`, which Window::add_in_edges() has returned, and
  // lets `targets` read this rank's own value. Needs no answer.
  void connect(const WindowPtr& window, const std::vector<int>& sources,
               const std::vector<int>& targets);

  // Start a request. put.x must stay alive and unchanged until the request is done.
  void put(const RequestPtr& request, const WindowPut& put);
  void get(const RequestPtr& request, const WindowGet& get);

  // Asks for the mutex of one rank, which may be this one.
  RequestPtr lock(const WindowPtr& window, int owner, Clock::time_point deadline);
  // Gives back the mutex that request `id` asked for, or cancels that request.
  void unlock(const WindowPtr& window, int owner, RequestId id);

  // WindowRequestHost.
  void fail(const WindowRequest& request, const Status& status) override;
  void expire(const WindowRequest& request) override;
  BaseRequest::Awaited awaited(const WindowRequest& request) const override;

  // Takes a message of type kWindow. Returns false and leaves it if it is not from this
  // job and this version of bluecomm.
  bool take_message(int peer, std::unique_ptr<Incoming>& message);
  // Moves what can be moved now. `gone` are the lost ranks. Returns whether anything
  // changed.
  bool poll(std::span<const int> gone);
  // Returns whether there is work to do other than this rank's requests.
  bool outstanding() const {
    return !arrivals_.empty() || !sharings_.empty() ||
           abandoned_.size() < detached_.size();
  }

  // Fails all requests, now and later, with `code` and `why`.
  void close(Code code, const std::string& why);
  // Drops all messages.
  void free();

 private:
  using Lane = std::pair<std::uint64_t, int>;  // window, peer

  struct Part {
    RequestPtr request;
    int peer = 0;
    WindowMessage message;  // the question
    std::span<const std::byte> payload;
    std::unique_ptr<Outgoing> outgoing;
    int holder = -1;          // rank that holds the mutex that is asked for
    bool is_dropped = false;  // it ends because the peer is lost
  };

  // A peer gets this rank's own value as a message, either as reader number `reader` of
  // the published value, or from a copy.
  struct Serving {
    WindowPtr window;
    int peer;
    std::optional<std::size_t> reader;
    std::vector<std::byte> copy;
    std::unique_ptr<Outgoing> outgoing;
  };

  // A peer is being sent a reference to shared memory.
  struct Sharing {
    WindowPtr window;
    int peer;
    std::size_t nbytes;
    std::unique_ptr<Outgoing> outgoing;
  };

  // Messages about a window that this rank has not created yet.
  struct Shared {
    int peer;
    WindowMessage message;
    SharedBytes bytes;
  };
  struct Early {
    std::set<int> opens;
    std::vector<Shared> shared;
  };

  // service.cpp: requests of this rank.
  void share_mailbox(int peer, const WindowPtr& window);
  void share_value(int peer, const WindowPtr& window);
  void share(int peer, const WindowPtr& window, WindowMessage message,
             std::span<const std::byte> bytes);
  void start(const RequestPtr& request, std::vector<Part> parts);
  void add_part(RequestId number, Part part);
  Header header_of(WindowMessage message, std::size_t nbytes) const;
  const Part* find_part(const Window& window) const;
  void note_exchange(const Part& part);
  void send(Part& part);
  void end_part(RequestId number, Status status);
  void fail_part(RequestId number, Status status);
  void finish(WindowRequest& request, int awaited);
  std::string timeout_text(const Part& part) const;
  void post(int peer, const WindowMessage& message, std::string_view text = {});

  // service_for_peers.cpp: requests of other ranks, and their answers.
  void serve(int peer, const WindowMessage& message,
             std::unique_ptr<Incoming> incoming);
  void refuse(int peer, const WindowMessage& message, const std::string& why);
  void note_open(int peer, std::uint64_t window);
  void take_shared(int peer, const WindowMessage& message,
                   std::unique_ptr<Incoming> incoming);
  void attach(Window& window, Shared shared);
  void receive(int peer, const WindowMessage& message, const WindowPtr& window,
               std::unique_ptr<Incoming> incoming);
  void send_value(int peer, const WindowMessage& message, const WindowPtr& window);
  static void end_serving(const Serving& serving);
  void enter_mutex(int peer, const WindowMessage& message, Window& window);
  void leave_mutex(int peer, std::uint64_t request, Window& window);
  void grant(const MutexQueue::Claim& claim, const Window& window);
  void cancel(int peer, const WindowMessage& message);
  void take_answer(int peer, const WindowMessage& message,
                   std::unique_ptr<Incoming> incoming);
  bool move_arrivals();
  void finish_arrival(WindowArrival& arrival);

  // service_losses.cpp
  std::vector<RequestId> parts_of(int peer) const;
  bool fail_gone(int rank);
  bool abandon(int rank);
  bool drop(int rank);
  void drop_part(RequestId number);
  void finish_arrivals_of(int rank);
  void forget(int rank);

  const int rank_;
  const std::uint64_t job_;
  const std::uint32_t epoch_;
  const RequestPeers& peers_;
  RequestTable& requests_;
  WaitStats& stats_;
  std::unordered_map<std::uint64_t, WindowPtr> windows_;
  std::map<std::uint64_t, Early> early_;  // by window
  std::vector<Sharing> sharings_;
  std::map<RequestId, Part> parts_;
  std::map<Lane, std::deque<RequestId>> lanes_;
  std::vector<std::unique_ptr<WindowArrival>> arrivals_;
  std::vector<Serving> servings_;
  std::set<int> detached_;   // lost ranks
  std::set<int> abandoned_;  // lost ranks whose claims and payloads have been dropped
  Status closed_;            // the arguments of close(); ok before
  const std::optional<Survival> survival_;
  // Windows into whose memory a lost rank may still write; see release_removed().
  std::vector<WindowPtr> removed_;
};

}  // namespace bluecomm
