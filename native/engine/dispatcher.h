#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/failure_watcher.h"
#include "common/status.h"
#include "engine/collectives/tuning.h"
#include "engine/engine_peers.h"
#include "engine/groups.h"
#include "engine/joining.h"
#include "engine/late_failures.h"
#include "engine/matching.h"
#include "engine/member_news.h"
#include "engine/member_service.h"
#include "engine/operation.h"
#include "engine/peers.h"
#include "p2p/service.h"
#include "request/request_table.h"
#include "request/wait_stats.h"
#include "transport/channel.h"
#include "window/service.h"

namespace bluecomm {

// A request that is not done, and the ranks that it waits for.
struct PendingRequest {
  RequestId id = 0;
  std::string kind;
  std::string name;
  std::uint64_t group = 0;
  double age_s = 0;
  std::vector<int> waiting_for;
  // The action that is expected of those ranks, such as "to answer"; empty if they have
  // to take part in the operation. Without ranks, what it waits for instead.
  std::string wish;
  std::size_t received_bytes = 0;
  std::size_t expected_bytes = 0;
};

// Returns the public name of a kind of request, such as "allreduce" or "win_put".
std::string_view request_kind_name(RequestKind kind);

struct PeerStats {
  int rank = 0;
  std::string transport;
  ChannelStats channel;
  WaitStats::Edges edges;  // of the kinds that were used
};

struct Stats {
  double age_s = 0;  // time since the last reset
  // How many values of lost ranks were replaced by own values.
  std::uint64_t replaced = 0;
  // How many window requests to lost ranks have ended without effect.
  std::uint64_t dropped = 0;
  // Bytes of inputs that were still being copied from a device when their operation or
  // send started.
  std::uint64_t overlapped = 0;
  std::vector<PeerStats> peers;
  WaitStats::Kinds kinds;
};

struct EngineConfig {
  int rank = 0;
  int size = 1;
  std::string job;
  std::uint32_t epoch = 0;
  std::string machine;
  Tuning tuning;
  std::shared_ptr<Recorder> recorder;  // or null
  // Whether operations that can go on without a lost peer do so.
  bool survives_losses = false;
  // The behavior of ranks that reach too few others to go on.
  Membership::Minority minority = Membership::Minority::kHolds;
  MemberService::LookAtProcess look_at_process;  // or empty
  // Allocates memory for results whose length only the peers know.
  std::function<Result(std::size_t nbytes)> allocate;
};

// Manages all requests of one rank: starts operations, passes arriving messages to
// them, and ends them. Passes messages about windows to its WindowService, and those of
// sends and receives to its PointService.
//
// It has no thread and never waits: each call does what is possible now. Guarded by the
// engine's progress lock, except next_request_id() and wait_stats().
class Dispatcher final : private Receiver, private OperationHost {
 public:
  Dispatcher(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports);
  ~Dispatcher();

  std::map<std::string, std::string> offers() const;
  void connect(std::vector<Peer> peers);
  const Peers& peers() const { return peers_; }
  void add_group(Group group);
  // Fails the group's operations, here and on the other members, and forgets all that
  // belongs to it. Calls of other members that still need this rank fail as soon as
  // their messages arrive. Throws std::invalid_argument for an unknown id.
  void remove_group(std::uint64_t id);
  // Throws std::invalid_argument for an unknown id.
  std::shared_ptr<const Group> group(std::uint64_t id) const;

  // Starts an operation and returns its id. Throws std::invalid_argument for arguments
  // that are invalid on this rank, and refuses the call; every other failure becomes
  // the request's status.
  // `id` comes from next_request_id(); 0 stands for a new one.
  RequestId submit(Call call, RequestId id = 0);
  // Starts a send or a receive.
  RequestId submit(PointCall call, RequestId id = 0);
  // Counts a call that this rank's program has refused to make, and tells the other
  // ranks, whose calls fail with the code, the text and the rank of `reason`; -1 stands
  // for this rank. A code other than kMismatch says that `call` is one of several calls
  // of a larger operation, which has failed here. Only the kind, the name and the group
  // of `call` are needed, and, unless the whole group is informed, whatever decides
  // which ranks take part. Does nothing for a pairwise call without its pair.
  enum class Informed { kParticipants, kGroup };
  void refuse(const Call& call, const Status& reason, Informed whom);
  // Returns how many operations with the group and name of `call` have been counted.
  std::uint32_t calls_like(const Call& call) const {
    return matching_.next_sequence(call.group->id, name_hash(call));
  }
  // Returns whether an operation of this kind and name on a group has not ended.
  bool is_in_flight(Kind kind, std::uint64_t group, std::string_view name) const {
    return matching_.is_in_flight(kind, group, hash_bytes(name));
  }
  const std::shared_ptr<BaseRequest>& request(RequestId id) const {
    return requests_.at(id);
  }
  // Returns whether the program has to fetch result() or source_of().
  bool has_result(RequestId id) const;
  // Throws std::invalid_argument if the request has no result of its own.
  const Result& result(RequestId id) const;
  // Returns the rank whose message a receive has taken. Throws std::invalid_argument if
  // the request is not a receive that has succeeded.
  int source_of(RequestId id) const;
  // See RequestTable.
  bool release(RequestId id) { return requests_.release(id); }
  // Releases a request that has succeeded and has no result to fetch. Returns whether
  // it did.
  bool release_if_plain(RequestId id);
  std::vector<RequestId> held() const { return requests_.held(); }
  std::vector<RequestId> take_finished() { return requests_.take_finished(); }
  bool watch(RequestId id) { return requests_.watch(id); }
  CompletionQueue& completion_queue() { return requests_.completion_queue(); }
  void extend_deadline(RequestId id, Clock::duration time) {
    requests_.extend_deadline(id, time);
  }
  void put_off_deadlines(Clock::duration time) {
    deadlines_pause_ = false;
    requests_.put_off_deadlines(time);
  }

  // Fails a request, unless it is done.
  void fail(RequestId id, Status status);
  // Fails all requests because of `text`, and the requests about windows that are
  // started later.
  void fail_all(Code code, const std::string& text, int rank);
  // Records that a rank has ended, or is about to, as the control plane knows.
  void peer_lost(int rank, std::string text);
  // Ends this rank's membership: all its requests fail with `text`, now and later.
  void leave_members(std::string text);
  // Tells `watcher` of each lost rank, also of those that are lost already, and of
  // calls with a ticket that fail on another rank after they have ended here.
  void watch_failures(std::shared_ptr<FailureWatcher> watcher) {
    failure_watcher_ = std::move(watcher);
  }
  // The changes of the members, in a job that survives losses. Thread-safe.
  MemberNews& member_news() { return member_news_; }
  bool survives_losses() const { return config_.survives_losses; }
  // Lets no deadline pass between pause_deadlines() and put_off_deadlines().
  void pause_deadlines() { deadlines_pause_ = true; }
  // Tells all peers that an error ends this rank's program, where no control plane
  // does. Their requests that need this rank fail at once; `what` follows the rank's
  // description, such as "raised KeyError: 'x'".
  void tell_failing(const std::string& what);
  std::vector<PendingRequest> pending() const;
  Stats stats() const;
  void reset_stats();
  // Removes and returns the failures that no operation has raised; see LateFailures.
  std::optional<Status> take_late_failure() { return late_failures_.take(); }
  RequestId next_request_id() { return requests_.next_id(); }
  WaitStats& wait_stats() { return stats_; }
  WindowService& windows() { return windows_; }

  // Announces that this rank has joined, unless it has done so in this round. Until
  // leave_join() it takes part in reductions and barriers of the ranks that have not.
  void join();
  struct JoinReport {
    std::uint64_t answers;   // operations of all ranks that it has taken part in
    std::uint32_t sequence;  // unused by all calls of this rank so far
  };
  JoinReport join_report() const;
  // Returns the next call of other ranks, without memory and ticket, in which this
  // rank, which has joined, is to take part through the library of its device; nothing
  // if no such call has been announced. The program makes or refuses the call, by which
  // it gets the number of the others' call, before it makes another call of that name.
  // The next call of this function refuses it otherwise.
  std::optional<Call> take_announced();
  // Ends the round. All ranks have joined, and all their operations have ended; they
  // pass the same `sequence`, at least that of each rank's report, at which the calls
  // of each name are counted on.
  void leave_join(std::uint32_t sequence);

  // Moves at most about kBudget bytes of each operation. Returns whether anything
  // changed; if so, the caller should call it again. If a request has ended, what the
  // transports could send has left, so the caller may stop polling.
  bool poll();
  bool outstanding() const { return requests_.outstanding() || windows_.outstanding(); }
  // See RequestTable.
  std::uint64_t completions() const { return requests_.completions(); }
  // Returns the time at which poll() must be called even if no transport wakes the
  // leader.
  Clock::time_point next_timer() const;
  // Returns the transports that have not failed.
  std::span<const std::unique_ptr<Transport>> transports() const { return transports_; }

  // Fails all requests and says goodbye; submit() fails from now on.
  void close();
  bool closed() const;
  // Calls Transport::release_backend() on all transports.
  void release_backends();
  // Drops all messages and transports. Memory that may still be read afterwards is
  // never freed; held() lists the requests that own it.
  void free();
  void abandon_after_fork() noexcept;

 private:
  static constexpr std::size_t kBudget = 1 << 20;
  // How often closed gates are polled. The leader must poll, because it is not woken
  // when a gate opens; but a poll calls CUDA under the progress lock.
  static constexpr std::chrono::microseconds kGateInterval{100};
  // How often the leader looks whether the library of a device has failed, while calls
  // wait for their numbers.
  static constexpr std::chrono::milliseconds kTicketInterval{20};
  // How often a message is posted again whose post has thrown.
  static constexpr std::chrono::milliseconds kRepostInterval{20};

  // Receiver. These functions only store the event, because the transport calls them
  // from within poll().
  void on_message(int peer, std::unique_ptr<Incoming> message) override;
  void on_lost(int peer, Status status) override;
  void on_goodbye(int peer) override;

  Operation& operation(RequestId id) const;

  // dispatcher_operations.cpp
  //
  // Whether this rank's program has called an operation, or other ranks while this one
  // has joined.
  enum class CalledBy { kProgram, kOthers };
  RequestId add(Call call, const Key& key, CalledBy caller, RequestId id);
  void hold_back(Operation& operation, bool held_back);
  bool start_when_ready(Operation& operation);
  bool resume(Operation& operation);
  void start(Operation& operation);
  bool advance(Operation& operation);
  void end(Operation& operation);

  // dispatcher_turns.cpp
  bool take_turn();
  bool has_unsent() const;
  bool read_arrivals();
  void match(int peer, const Envelope& envelope, std::unique_ptr<Incoming> message);

  // OperationHost.
  void fail_operation(Operation& operation, Status status) override;
  void expire_operation(Operation& operation) override;

  // dispatcher_failures.cpp
  void for_transports(const std::function<void(Transport&)>& body);
  void fail_thrown(Operation& operation, const std::exception& error);
  void post(int peer, const Envelope& message, std::span<const std::byte> payload);
  void send_abort(int peer, const Envelope& call, const Status& status);
  void fail_mismatch(Operation& operation, int peer, const Envelope& theirs);
  void fail_unexpected(int peer, const Envelope& theirs);
  void fail_forgotten(Operation& operation, int peer);
  void add_late_failure(const std::string& where, Status status);
  void handle_abort(int peer, const Envelope& envelope, std::string text);
  void note_late_failure(int peer, const Envelope& envelope, Status status);
  void tell_watcher_of_ticket(const Envelope& call, const Status& status);
  void handle_group_removed(int peer, std::uint64_t id);
  bool fail_for_removers(Operation& operation);
  bool awaits_more(const Operation& operation, int peer) const;
  void fail_for_remover(Operation& operation, int remover);
  // Returns the text of failures because `remover`, by default this rank, has removed
  // the group.
  std::string group_removed_text(std::optional<int> remover = std::nullopt) const;
  void tell_failed_device();
  void tell_all(MessageType type, const std::string& what);
  void send_group_removed(int peer, const Envelope& call);
  bool read_aborts();
  bool has_abort(int peer, const Key& key) const;
  bool expire_requests(Clock::time_point now);
  std::vector<int> participants(const Operation& operation) const;
  Status timeout_status(const Operation& operation) const;

  // dispatcher_losses.cpp
  void poll_members(Clock::time_point now);
  bool settle_losses(Clock::time_point now);
  bool fail_needing(int rank, Clock::time_point now);
  bool must_tell_watcher(int rank) const;
  void tell_watcher(int rank, Clock::time_point now);
  bool holds_for(int rank) const;
  bool drops_lost(const Operation& operation) const;
  bool is_dropped_by_others(const Operation& operation) const;
  bool drop(int rank, Clock::time_point now);
  void drop_lost(Operation& operation);
  std::optional<WindowService::Survival> survival_of_windows();
  bool is_loss(const Envelope& call, const Status& status) const;
  void go_on_without(Operation* operation, int peer);

  // dispatcher_refusals.cpp
  void refuse(const Call& call, const Key& key, const Status& reason,
              std::vector<int> ranks);
  Plan plan_or_refuse(const Call& call, const Key& key);

  // dispatcher_joining.cpp
  void handle_join(int peer, std::uint32_t round);
  void announce(const Operation& operation);
  struct AnnouncedCall {
    int peer;
    Envelope envelope;
    Call call;
  };
  void handle_announcement(int peer, const Envelope& theirs, std::string_view payload);
  void keep_announced(AnnouncedCall announced);
  void answer(int peer, const Envelope& theirs, Call call);
  Result give_neutral(Call& call) const;
  void refuse_announcement(int peer, const Envelope& theirs);
  Status joined_status(const Envelope& theirs) const;
  void release_answers();

  const EngineConfig config_;
  const std::uint64_t job_;
  std::vector<std::unique_ptr<Transport>> transports_;
  // Transports that have thrown. The dispatcher no longer calls them, because their
  // state is unknown, but keeps them, because their channels are still in use.
  std::vector<std::unique_ptr<Transport>> broken_transports_;
  Status broken_;  // the reason why no operation can start any more; ok if they can
  Peers peers_;
  Groups groups_;
  Matching matching_;
  Joining joining_;
  RequestId joined_at_ = 0;  // above the ids of all operations before the last join()
  std::vector<RequestId> answers_;       // operations that this rank has not called
  std::deque<AnnouncedCall> announced_;  // those that the program has yet to answer
  std::optional<AnnouncedCall> taken_;   // the one that the program answers now
  RequestTable requests_;
  // The active operations, in the order of their start. They are apart from the
  // requests about windows, of which there may be thousands and which need no turns.
  std::deque<Operation*> operations_;
  std::size_t held_back_ = 0;  // operations that wait for their gates
  Clock::time_point next_gate_poll_{};
  std::size_t tickets_ = 0;  // active operations that have one
  WaitStats stats_;
  EnginePeers request_peers_;
  WindowService windows_;
  PointService points_;
  std::vector<ChannelStats> counted_before_;  // by rank, at the last reset_stats()
  Clock::time_point now_;                     // the start of this turn
  std::uint64_t replaced_ = 0;                // see Stats
  bool has_early_ = false;  // some operation may have messages of dropped peers
  LateFailures late_failures_;
  std::set<std::uint64_t> quiet_groups_;  // whose calls have no Call::raises_late
  std::shared_ptr<FailureWatcher> failure_watcher_;  // or null
  std::set<int> told_losses_;                        // the ranks that it knows of
  bool has_told_failed_device_ = false;
  MemberNews member_news_;
  std::optional<MemberService> members_;  // in a job that survives losses
  bool deadlines_pause_ = false;
  struct Arrived {
    int peer;
    std::unique_ptr<Incoming> message;
  };
  std::vector<Arrived> arrived_;
  struct Abort {
    int peer;
    Envelope envelope;
    std::unique_ptr<Incoming> message;
    std::string text;
  };
  // ABORTs, ANNOUNCEs and FAILINGs whose payloads are still arriving.
  std::vector<Abort> aborts_;
  bool closing_ = false;
};

}  // namespace bluecomm
