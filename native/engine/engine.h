#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/dispatcher.h"
#include "engine/progress.h"
#include "window/calls.h"

namespace bluecomm {

// One rank's data plane: its requests, the transports that they use, and the thread
// that moves them on while no caller does. All methods are thread-safe; only run(),
// wait(), next_done() and close() block.
class Engine final : public WindowHost, private Work {
 public:
  Engine(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports);
  // Frees everything immediately. Call close() first to say goodbye to the peers.
  ~Engine() override;

  std::map<std::string, std::string> offers();
  // Opens the channels and starts the progress thread. Call it once.
  void start(std::vector<Peer> peers);
  std::string transport_of(int rank);
  // See Group for `machine_of` and `parent`. Throws std::invalid_argument if the list
  // has an unknown rank or lacks this one.
  void add_group(std::uint64_t id, std::vector<int> ranks, std::vector<int> machine_of,
                 std::optional<std::uint64_t> parent = std::nullopt);
  // See Dispatcher.
  void remove_group(std::uint64_t id);
  std::shared_ptr<const Group> group(std::uint64_t id);

  // Whether the caller of submit() continues with something else, so that the progress
  // thread has to move the request on, or waits for it immediately and so drives it
  // itself. The thread is woken at once only if the request is urgent.
  enum class Caller { kGoesOn, kWaits };

  // See Dispatcher.
  RequestId submit(Call call, Caller caller = Caller::kGoesOn, RequestId id = 0);
  RequestId submit(PointCall call, Caller caller = Caller::kGoesOn, RequestId id = 0);
  // submit() and wait() in one. Returns 0 if the operation has succeeded and has no
  // result() of its own; it is released then. Otherwise returns its id, as submit()
  // does: the operation has failed, or its result has to be fetched, or it still runs
  // because a signal came or Progress::kInterruptCheck has passed.
  RequestId run(Call call);
  // Waits for `ids`, then runs `call`, whose time begins then. Returns what run()
  // returns, or nothing if `call` has not started: a request has failed, or still runs
  // after Progress::kInterruptCheck or at a signal, or the group has been removed.
  std::optional<RequestId> run_after(const std::vector<RequestId>& ids, Call call);
  void refuse(const Call& call, const Status& reason, Dispatcher::Informed whom);
  RequestId run(PointCall call);
  std::uint32_t calls_like(const Call& call);
  bool is_in_flight(Kind kind, std::uint64_t group, std::string_view name);
  // Moves the request on if it is not done.
  bool done(RequestId id);
  // Returns nothing if `deadline` passed, or `interrupted` returned true, before the
  // request was done. Several threads may wait for one request.
  std::optional<Status> wait(RequestId id, Clock::time_point deadline,
                             const std::function<bool()>& interrupted = {});
  // Like wait(), but also returns when the first `nbytes` bytes of the result are
  // final. One thread at a time.
  struct Part {
    std::optional<Status> status;  // of a request that has ended
    std::size_t final_prefix = 0;  // see BaseRequest
  };
  Part wait_part(RequestId id, std::size_t nbytes, Clock::time_point deadline,
                 const std::function<bool()>& interrupted = {});
  Result result(RequestId id);
  int source_of(RequestId id);

  // See RequestTable and CompletionQueue. next_done() blocks, and drives the engine as
  // the background thread while watched requests run; only one thread may call it at a
  // time. It returns nothing once the engine is closed and all ended requests that were
  // watched have been returned.
  bool watch(RequestId id);
  std::optional<std::vector<RequestId>> next_done(Clock::time_point deadline);

  // Runs `body` on the WindowService under the progress lock and returns its result.
  template <typename Body>
  auto with_windows(Body&& body, Caller caller = Caller::kGoesOn) {
    const auto start = [&] {
      auto result = std::forward<Body>(body)(dispatcher_.windows());
      begin(caller);
      return result;
    };
    return caller == Caller::kWaits ? progress_.run(start) : progress_.submit(start);
  }
  // WindowHost.
  RequestId next_request_id() override { return dispatcher_.next_request_id(); }
  WaitStats& wait_stats() override { return dispatcher_.wait_stats(); }
  void start_put(std::shared_ptr<WindowRequest> request, const WindowPut& put,
                 bool blocking) override;
  void start_get(std::shared_ptr<WindowRequest> request, const WindowGet& get,
                 bool blocking) override;

  bool release(RequestId id);
  // See RequestTable::held(). Works after close(), too.
  std::vector<RequestId> held();
  std::vector<RequestId> finished();
  void fail(RequestId id, Status status);
  void extend_deadline(RequestId id, Clock::duration time);
  std::vector<PendingRequest> pending();
  void peer_lost(int rank, std::string text);
  void leave_members(std::string text);
  // See Dispatcher.
  void watch_failures(std::shared_ptr<FailureWatcher> watcher);
  // Waits for the next change of the members; see MemberNews.
  std::optional<MemberChange> next_member_change(Clock::time_point deadline) {
    return dispatcher_.member_news().next(deadline);
  }
  void tell_failing(const std::string& what);
  // See Dispatcher. Works after close(), too.
  std::optional<Status> take_late_failure();
  Stats stats();
  void reset_stats();

  // See Dispatcher.
  void join();
  Dispatcher::JoinReport join_report();
  std::optional<Call> take_announced();
  void leave_join(std::uint32_t sequence);

  // Between suspend() and resume(), no message moves, wait() returns nothing
  // immediately, and deadlines are extended. In a job that survives losses, the
  // progress thread goes on, because the other ranks would count this one as lost.
  void suspend();
  void resume();

  // Fails all requests, says goodbye, delivers sent messages for at most `limit`, and
  // stops the thread.
  void close(Clock::duration limit);

  // Call this when MPI_Finalize begins; see Transport::release_backend().
  void release_backends();

  // Keep all other threads out of the engine during a fork.
  void lock_for_fork() NO_THREAD_SAFETY_ANALYSIS { progress_.lock(); }
  void unlock_after_fork() NO_THREAD_SAFETY_ANALYSIS { progress_.unlock(); }
  // Closes all descriptors in a forked child, under that lock. The object must then be
  // leaked.
  void abandon_after_fork() noexcept NO_THREAD_SAFETY_ANALYSIS;

 private:
  template <typename AnyCall>
  RequestId start_call(AnyCall call, Caller caller, RequestId id);
  template <typename AnyCall>
  RequestId run_call(AnyCall call);
  void check_started() const;
  void begin(Caller caller);
  void read_last_messages();
  void act_on_loss(int rank, std::string text);
  bool poll() override;
  bool outstanding() const override { return dispatcher_.outstanding(); }
  std::uint64_t completions() const override { return dispatcher_.completions(); }
  Clock::time_point next_timer() const override { return dispatcher_.next_timer(); }
  std::span<const int> wait_fds() const override { return wait_fds_; }
  void note_wait_fds();
  bool prepare_sleep() override;
  void finish_sleep() override;

  Dispatcher dispatcher_;
  std::vector<int> wait_fds_;
  Progress progress_;
  bool has_more_ = false;  // poll() has work left, though no transport reports it
  bool started_ = false;
  bool closed_ = false;
  std::optional<Clock::time_point> suspended_at_;
  Clock::time_point reading_until_{};  // see read_last_messages()
  // Reports of losses for resume(), because no message could be read when they came.
  std::vector<std::pair<int, std::string>> late_reports_;
};

}  // namespace bluecomm
