// Forwards calls to the dispatcher under the progress lock, and waits for requests. The
// program's threads call these functions, except poll() and the sleeping functions,
// which Progress calls on the leading thread.
#include "engine/engine.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/cores.h"

namespace bluecomm {
namespace {

// Polling before a sleep pays only if each rank has a core of its own and one core is
// left for the other processes of the machine.
constexpr std::chrono::microseconds kSpin{20};

std::chrono::microseconds spin_for(int ranks_here) {
  return ranks_here < usable_cores() ? kSpin : std::chrono::microseconds{0};
}

// About the time in which another rank of this machine answers, if it is not late.
constexpr std::chrono::microseconds kYield{50};

// Longest time to read what lost peers have sent. Usually everything is here at once.
constexpr std::chrono::milliseconds kLastMessages{200};
// Turns that are made even if they take longer: on a busy machine this thread may not
// have the processor in that time.
constexpr int kLastTurns = 64;
// The ranks of a lost host are reported one by one, and share that time.
constexpr std::chrono::seconds kOneLoss{1};

}  // namespace

Engine::Engine(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports)
    : dispatcher_(std::move(config), std::move(transports)),
      progress_(*this, std::chrono::microseconds{0}) {
  note_wait_fds();
  if (wait_fds_.size() > kMaxWaitFds)
    throw std::invalid_argument("too many transports");
}

Engine::~Engine() { progress_.stop_thread(); }

std::map<std::string, std::string> Engine::offers() {
  return progress_.with_lock([&] { return dispatcher_.offers(); });
}

void Engine::start(std::vector<Peer> peers) {
  progress_.with_lock([&] {
    if (started_) throw std::invalid_argument("the engine has already been started");
    dispatcher_.connect(std::move(peers));
    started_ = true;
    const int ranks_here = dispatcher_.peers().ranks_here();
    progress_.set_spin(spin_for(ranks_here));
    if (ranks_here > 1) progress_.set_yield(kYield);
  });
  progress_.start_thread();
}

std::string Engine::transport_of(int rank) {
  return progress_.with_lock([&] {
    const Peers& peers = dispatcher_.peers();
    if (rank < 0 || rank >= peers.size()) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not in 0 .. " +
                                  std::to_string(peers.size() - 1));
    }
    return std::string(peers.transport_of(rank));
  });
}

void Engine::add_group(std::uint64_t id, std::vector<int> ranks,
                       std::vector<int> machine_of,
                       std::optional<std::uint64_t> parent) {
  progress_.with_lock([&] {
    Group group;
    group.id = id;
    const int rank = dispatcher_.peers().rank();
    const auto me = std::find(ranks.begin(), ranks.end(), rank);
    if (me == ranks.end()) {
      throw std::invalid_argument("the group does not contain rank " +
                                  std::to_string(rank));
    }
    group.me = static_cast<int>(me - ranks.begin());
    group.ranks = std::move(ranks);
    group.machine_of = std::move(machine_of);
    group.parent = parent;
    dispatcher_.add_group(std::move(group));
  });
}

void Engine::remove_group(std::uint64_t id) {
  progress_.submit([&] {
    dispatcher_.remove_group(id);
    begin(Caller::kGoesOn);
    return true;
  });
}

std::shared_ptr<const Group> Engine::group(std::uint64_t id) {
  return progress_.with_lock([&] { return dispatcher_.group(id); });
}

template <typename AnyCall>
RequestId Engine::start_call(AnyCall call, Caller caller, RequestId id) {
  const auto start = [&] {
    check_started();
    id = dispatcher_.submit(std::move(call), id);
    begin(caller);
    return id;
  };
  if (caller == Caller::kWaits) return progress_.run(start);
  return progress_.submit(start, [this](RequestId started) {
    return dispatcher_.request(started)->is_urgent();
  });
}

void Engine::check_started() const {
  if (!started_) throw std::invalid_argument("the engine has not been started");
}

RequestId Engine::submit(Call call, Caller caller, RequestId id) {
  return start_call(std::move(call), caller, id);
}

RequestId Engine::submit(PointCall call, Caller caller, RequestId id) {
  return start_call(std::move(call), caller, id);
}

RequestId Engine::run(Call call) { return run_call(std::move(call)); }

RequestId Engine::run(PointCall call) { return run_call(std::move(call)); }

template <typename AnyCall>
RequestId Engine::run_call(AnyCall call) {
  RequestId id = 0;
  // An operation that waits for nobody ends at once, under this lock. Its own messages
  // leave even so: the peers should not wait until a thread polls, and this process may
  // end before one does.
  const bool is_over = progress_.run([&] {
    check_started();
    id = dispatcher_.submit(std::move(call));
    begin(Caller::kWaits);
    return dispatcher_.release_if_plain(id);
  });
  if (is_over) return 0;
  const std::optional<Status> status =
      wait(id, Clock::time_point::max(), [] { return true; });
  if (!status || !status->ok()) return id;
  const bool is_plain =
      progress_.with_lock([&] { return dispatcher_.release_if_plain(id); });
  return is_plain ? 0 : id;
}

std::optional<RequestId> Engine::run_after(const std::vector<RequestId>& ids,
                                           Call call) {
  const bool has_limit = call.deadline != Clock::time_point::max();
  const Clock::time_point begin = Clock::now();
  try {
    for (const RequestId id : ids) {
      const std::optional<Status> status =
          wait(id, Clock::time_point::max(), [] { return true; });
      if (!status || !status->ok()) return std::nullopt;
    }
    if (has_limit) call.deadline += Clock::now() - begin;
    return run(std::move(call));
  } catch (const std::invalid_argument&) {
    // Another thread has removed the group, and released its requests.
    return std::nullopt;
  }
}

void Engine::refuse(const Call& call, const Status& reason, Dispatcher::Informed whom) {
  progress_.submit([&] {
    dispatcher_.refuse(call, reason, whom);
    begin(Caller::kGoesOn);
    return true;
  });
}

std::uint32_t Engine::calls_like(const Call& call) {
  return progress_.with_lock([&] { return dispatcher_.calls_like(call); });
}

bool Engine::is_in_flight(Kind kind, std::uint64_t group, std::string_view name) {
  return progress_.with_lock(
      [&] { return dispatcher_.is_in_flight(kind, group, name); });
}

bool Engine::done(RequestId id) {
  const std::shared_ptr<const BaseRequest> running = progress_.with_lock([&] {
    const auto& request = dispatcher_.request(id);
    return request->done() ? nullptr : request;
  });
  if (!running) return true;
  return progress_.run([&] {
    if (!running->done() && !suspended_at_) poll();
    return running->done();
  });
}

std::optional<Status> Engine::wait(RequestId id, Clock::time_point deadline,
                                   const std::function<bool()>& interrupted) {
  const std::shared_ptr<const BaseRequest> request =
      progress_.with_lock([&] { return dispatcher_.request(id); });
  const Clock::time_point begin = Clock::now();
  const bool done =
      progress_.drive_until([&] { return request->done(); }, deadline, interrupted);
  wait_stats().blocked(*request, begin);
  // The status no longer changes, so it is read without the lock.
  return done ? std::optional<Status>(request->status()) : std::nullopt;
}

Engine::Part Engine::wait_part(RequestId id, std::size_t nbytes,
                               Clock::time_point deadline,
                               const std::function<bool()>& interrupted) {
  const std::shared_ptr<BaseRequest> request = progress_.with_lock([&] {
    const std::shared_ptr<BaseRequest>& found = dispatcher_.request(id);
    found->set_goal(nbytes);
    return found;
  });
  const Clock::time_point begin = Clock::now();
  Part part;
  progress_.drive_until(
      [&] {
        part.final_prefix = request->final_prefix();
        if (request->done()) part.status = request->status();
        return part.status || part.final_prefix >= nbytes;
      },
      deadline, interrupted);
  wait_stats().blocked(*request, begin);
  return part;
}

void Engine::start_put(std::shared_ptr<WindowRequest> request, const WindowPut& put,
                       bool blocking) {
  with_windows(
      [&](WindowService& windows) {
        windows.put(request, put);
        wait_stats().submitted(*request);
        return true;
      },
      blocking ? Caller::kWaits : Caller::kGoesOn);
}

void Engine::start_get(std::shared_ptr<WindowRequest> request, const WindowGet& get,
                       bool blocking) {
  with_windows(
      [&](WindowService& windows) {
        windows.get(request, get);
        wait_stats().submitted(*request);
        return true;
      },
      blocking ? Caller::kWaits : Caller::kGoesOn);
}

Result Engine::result(RequestId id) {
  return progress_.with_lock([&] { return dispatcher_.result(id); });
}

bool Engine::watch(RequestId id) {
  return progress_.with_lock([&] { return dispatcher_.watch(id); });
}

std::optional<std::vector<RequestId>> Engine::next_done(Clock::time_point deadline) {
  CompletionQueue& queue = dispatcher_.completion_queue();
  while (queue.wait(deadline) && Clock::now() < deadline) {
    progress_.drive_in_background([&queue] { return queue.ready(); }, deadline);
  }
  return queue.take();
}

int Engine::source_of(RequestId id) {
  return progress_.with_lock([&] { return dispatcher_.source_of(id); });
}

bool Engine::release(RequestId id) {
  return progress_.with_lock([&] { return dispatcher_.release(id); });
}

std::vector<RequestId> Engine::held() {
  return progress_.with_lock([&] { return dispatcher_.held(); });
}

std::vector<RequestId> Engine::finished() {
  return progress_.with_lock([&] { return dispatcher_.take_finished(); });
}

void Engine::fail(RequestId id, Status status) {
  progress_.run([&] { dispatcher_.fail(id, std::move(status)); });
}

void Engine::extend_deadline(RequestId id, Clock::duration time) {
  progress_.run([&] { dispatcher_.extend_deadline(id, time); });
}

std::vector<PendingRequest> Engine::pending() {
  return progress_.with_lock([&] { return dispatcher_.pending(); });
}

void Engine::peer_lost(int rank, std::string text) {
  progress_.run([&] {
    // In a job that survives losses, the progress thread moves messages anyway.
    if (suspended_at_ && !dispatcher_.survives_losses()) {
      late_reports_.emplace_back(rank, std::move(text));
    } else {
      act_on_loss(rank, std::move(text));
    }
  });
}

void Engine::act_on_loss(int rank, std::string text) {
  read_last_messages();
  dispatcher_.peer_lost(rank, std::move(text));
  poll();
}

void Engine::watch_failures(std::shared_ptr<FailureWatcher> watcher) {
  progress_.run([&] { dispatcher_.watch_failures(std::move(watcher)); });
}

void Engine::leave_members(std::string text) {
  progress_.run([&] { dispatcher_.leave_members(std::move(text)); });
}

void Engine::tell_failing(const std::string& what) {
  progress_.submit([&] {
    dispatcher_.tell_failing(what);
    if (!suspended_at_) begin(Caller::kGoesOn);
    return true;
  });
}

std::optional<Status> Engine::take_late_failure() {
  return progress_.with_lock([&] { return dispatcher_.take_late_failure(); });
}

Stats Engine::stats() {
  return progress_.with_lock([&] { return dispatcher_.stats(); });
}

void Engine::reset_stats() {
  progress_.with_lock([&] { dispatcher_.reset_stats(); });
}

void Engine::join() {
  progress_.run([&] { dispatcher_.join(); });
}

Dispatcher::JoinReport Engine::join_report() {
  return progress_.with_lock([&] { return dispatcher_.join_report(); });
}

std::optional<Call> Engine::take_announced() {
  return progress_.run([&] { return dispatcher_.take_announced(); });
}

void Engine::leave_join(std::uint32_t sequence) {
  progress_.run([&] { dispatcher_.leave_join(sequence); });
}

void Engine::suspend() {
  const bool thread_goes_on = progress_.with_lock([&] {
    if (!suspended_at_) suspended_at_ = Clock::now();
    if (dispatcher_.survives_losses()) dispatcher_.pause_deadlines();
    return dispatcher_.survives_losses();
  });
  progress_.suspend(thread_goes_on);
}

void Engine::resume() {
  progress_.with_lock([&] {
    if (suspended_at_) dispatcher_.put_off_deadlines(Clock::now() - *suspended_at_);
    suspended_at_.reset();
  });
  progress_.resume();
  progress_.run([&] {
    for (auto& [rank, text] : std::exchange(late_reports_, {})) {
      act_on_loss(rank, std::move(text));
    }
  });
}

void Engine::close(Clock::duration limit) {
  resume();
  progress_.run([&] {
    if (!closed_) dispatcher_.close();
    closed_ = true;
  });
  progress_.drive_until([&] { return dispatcher_.closed(); }, Clock::now() + limit, {});
  progress_.stop_thread();
  progress_.with_lock([&] {
    dispatcher_.free();
    wait_fds_.clear();
  });
  progress_.close_doorbells();
  dispatcher_.completion_queue().close();
  dispatcher_.member_news().close();
}

void Engine::release_backends() {
  progress_.run([&] {
    dispatcher_.release_backends();
    if (!suspended_at_) poll();
  });
}

void Engine::abandon_after_fork() noexcept {
  dispatcher_.abandon_after_fork();
  progress_.abandon_after_fork();
}

bool Engine::poll() {
  try {
    return dispatcher_.poll();
  } catch (const std::exception& error) {
    // It is unknown which messages have been processed.
    dispatcher_.fail_all(Code::kInternal, error.what(), -1);
    return true;
  }
}

// Takes what has arrived. On a busy machine the news of a loss may come before this
// rank has read what the peer sent, and an operation may need nothing else.
void Engine::read_last_messages() {
  const Clock::time_point begin = Clock::now();
  if (begin > reading_until_ + kOneLoss) reading_until_ = begin + kLastMessages;
  bool changed = poll();
  for (int turn = 1; changed; ++turn) {
    if (turn >= kLastTurns && Clock::now() >= reading_until_) break;
    changed = poll();
  }
}

// Begins to move the data of the request that the caller has started. If work is left
// after two turns and the caller continues with something else, no leader may sleep,
// because nothing would wake it.
void Engine::begin(Caller caller) {
  const bool changed = poll();
  has_more_ = changed && caller == Caller::kGoesOn && poll();
}

void Engine::note_wait_fds() {
  wait_fds_.clear();
  for (const auto& transport : dispatcher_.transports()) {
    if (transport->wait_fd() >= 0) wait_fds_.push_back(transport->wait_fd());
  }
}

bool Engine::prepare_sleep() {
  if (std::exchange(has_more_, false)) return false;
  note_wait_fds();  // a transport may have failed
  const auto transports = dispatcher_.transports();
  for (std::size_t i = 0; i < transports.size(); ++i) {
    if (transports[i]->prepare_sleep()) continue;
    // finish_sleep() follows each call of prepare_sleep(), even one that returned
    // false.
    for (std::size_t j = 0; j <= i; ++j) transports[j]->finish_sleep();
    return false;
  }
  return true;
}

void Engine::finish_sleep() {
  for (const auto& transport : dispatcher_.transports()) transport->finish_sleep();
}

}  // namespace bluecomm
