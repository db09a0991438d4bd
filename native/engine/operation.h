#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/call.h"
#include "engine/envelope.h"
#include "engine/gather_state.h"
#include "engine/pending_sends.h"
#include "engine/plan.h"
#include "request/base_request.h"

namespace bluecomm {

static_assert(kKindCount <= kMaxOperationKinds);
constexpr RequestKind request_kind(Kind kind) { return static_cast<RequestKind>(kind); }

// Memory of a result that the engine has allocated, and the number of rows that came
// from each source.
struct Result {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
  std::vector<std::int64_t> rows;
};

class Operation;

// The dispatcher, as its operations use it.
class OperationHost {
 public:
  virtual void fail_operation(Operation& operation, Status status) = 0;
  virtual void expire_operation(Operation& operation) = 0;

 protected:
  ~OperationHost() = default;
};

// One call of an operation on this rank: executes its plan. docs/data-plane.md
// describes its states. Guarded by the progress lock.
class Operation final : public BaseRequest {
 public:
  // Whether deliver() has taken a message, or left it because the call does not expect
  // it.
  enum class Delivery { kTaken, kUnexpected };

  // `plan` was made from `call` and may refer to its memory, but not to `call`. `host`
  // is used by abort() and expire() only.
  Operation(RequestId id, Call call, Plan plan, const Envelope& envelope,
            OperationHost* host);

  std::string_view kind_name() const override {
    return bluecomm::kind_name(call_.kind);
  }
  std::string_view name() const override { return call_.name; }
  TraceFields trace_fields() const override;
  // Returns false for a short operation whose peers all reach this rank's memory, or
  // wait for nothing that it has yet to do: its program will probably wait for it
  // before another thread has been woken.
  bool is_urgent() const override;
  bool holds_memory() const override { return lease_.has_tenants(); }
  Awaited awaited() const override;
  void abort(Status status) override {
    host_->fail_operation(*this, std::move(status));
  }
  void expire() override { host_->expire_operation(*this); }
  // Cancels the messages of the call.
  void finish(Status status) override;

  const Call& call() const { return call_; }
  const Envelope& envelope() const { return envelope_; }
  const Key& key() const { return envelope_.key; }
  const Plan& plan() const { return plan_; }
  // The result, if the engine has allocated it; set by Call::allocate.
  const Result& result() const { return result_; }
  void set_result(Result result) { result_ = std::move(result); }

  // Polls the gate of the call, after whose failure there is an error().
  void poll_input();
  // Whether the input, as far as it has been written, is enough to start.
  bool may_start() const;
  // The part of the input that has not been written, as far as is known.
  std::span<const std::byte> unwritten_input() const;
  // Whether the operation runs while its input is still being written.
  bool is_filling() const { return state_ == State::kRunning && !has_input_; }
  // Whether it is this operation's turn, but its gate, or that of its running phase,
  // has not opened yet. Set by the dispatcher.
  bool is_held_back() const { return is_held_back_; }
  void set_held_back(bool held_back) { is_held_back_ = held_back; }
  // Whether the running phase waits for its gate only.
  bool awaits_gate() const { return awaits_gate_; }

  // Stays 0 until the end if lengths are not known at the start.
  std::size_t final_prefix() const override;

  // Starts the first phase. `channels` is indexed by global rank.
  void start(std::span<Channel* const> channels);

  // Takes a message of this call, for a running phase or a later one. Leaves an
  // unexpected message in `message`.
  Delivery deliver(int peer, const Envelope& envelope,
                   std::unique_ptr<Incoming>& message);

  // Moves at most about `budget` bytes. Returns whether anything changed. Afterwards
  // the operation may be done, or have an error() that the caller sends to the other
  // ranks.
  bool advance(std::size_t budget);

  // Returns once which peer was the last to call, or -1 for this rank, if another rank
  // has told it.
  std::optional<int> take_told_caller() {
    return plan_.last_caller ? std::exchange(plan_.last_caller->told, std::nullopt)
                             : std::nullopt;
  }

  // The reason why this call cannot continue, found by deliver() or advance().
  const std::optional<Status>& error() const { return error_; }

  // Goes on without `peer`, which is lost: cancels the messages to it, and lets own
  // values take the weight of what has not arrived from it. Only for kinds that
  // drops_lost. Returns the number of sources that were replaced. Afterwards there may
  // be an error().
  std::size_t drop_peer(int peer);

  // The messages that the first running phase still waits for. Later phases wait for
  // peers that themselves wait for the first one.
  struct Unfinished {
    std::vector<Missing> missing;
    std::vector<int> not_taken;  // peers that still read this rank's messages
    std::size_t received = 0;
    std::size_t expected = 0;
  };
  Unfinished unfinished() const;
  // Returns whether this call cannot end without `peer`.
  bool needs(int peer) const;
  // Returns whether the header of some message of `peer` has not arrived.
  bool awaits_header(int peer) const;
  // Returns a peer without which nothing can be done now, or -1.
  int blocker();
  // Returns all peers that the plan sends to or receives from, in ascending order.
  std::vector<int> peers() const;

 private:
  struct SourceIndex {
    std::size_t gather;
    std::size_t source;
  };
  struct EarlyMessage {  // for a later phase
    int peer;
    Envelope envelope;
    std::unique_ptr<Incoming> message;
  };

  // A phase that has begun and is not over.
  struct RunningPhase {
    std::uint32_t number;
    std::vector<GatherState> gathers;
    bool is_open = false;  // the destinations are known
  };
  // Limits the messages that are announced ahead, and the time spent on each turn.
  static constexpr std::size_t kMaxRunning = 8;

  const Phase& phase(const RunningPhase& running) const {
    return plan_.phases[running.number];
  }
  RunningPhase* find_running(std::uint32_t phase);
  const RunningPhase* find_running(std::uint32_t phase) const;
  // The phases that have not begun are those from next_phase_ on.
  bool has_begun(std::uint32_t phase) const { return phase < next_phase_; }
  std::optional<SourceIndex> find_source(std::uint32_t phase, int peer,
                                         std::uint32_t slot) const;
  bool may_begin_phase() const;
  void begin_phases();
  void begin_phase();
  void put(RunningPhase& running, const SourceIndex& index, int peer,
           const Envelope& envelope, std::unique_ptr<Incoming> message);
  bool open_phase(RunningPhase& running);
  void bind(RunningPhase& running);
  void limit_own_sources(RunningPhase& running);
  std::size_t ready_prefix(std::span<const std::byte> bytes, std::uint32_t phase) const;
  bool supply_sends();
  std::size_t remote_sources(const Gather& gather) const;
  bool keeps_in_step() const;
  std::size_t received() const;
  bool end_phases();
  bool owes_peers() const;
  bool is_over(const RunningPhase& running);
  bool has_passed(const Phase& phase);
  void check_ticket();
  void fail_with(const Status& reason);
  std::size_t leave_out(std::uint32_t phase, int peer);
  void keep_own(GatherState& gather);
  PendingSends::MessageContext context() { return {envelope_, channels_, lease_}; }
  void fail_length(std::uint32_t phase, int peer, std::size_t announced,
                   std::size_t expected);

  Call call_;
  Plan plan_;
  const Envelope envelope_;
  OperationHost* const host_;
  std::optional<Status> error_;
  Result result_;

  std::span<Channel* const> channels_;
  std::deque<RunningPhase> running_;  // ascending
  std::uint32_t next_phase_ = 0;
  Lease lease_;
  PendingSends sends_;
  bool keeps_in_step_ = false;       // see keeps_in_step()
  std::size_t received_before_ = 0;  // from other machines, in finished phases
  std::vector<EarlyMessage> early_;
  std::vector<int> scratch_peers_;
  int lost_ = -1;  // the last peer that was dropped
  bool is_held_back_ = false;
  bool awaits_gate_ = false;
  bool has_input_ = true;          // the whole input has been written
  std::size_t input_written_ = 0;  // its first bytes that have been, until then
  bool starts_early_ = false;      // it started before the whole input had been written
  bool has_begun_anew_ = false;    // a gather has begun again, after keep_own()
};

}  // namespace bluecomm
