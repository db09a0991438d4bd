#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"
#include "engine/envelope.h"
#include "engine/gather_state.h"
#include "engine/pending_sends.h"
#include "engine/plan.h"
#include "engine/request.h"
#include "request/base_request.h"

// The executor of plans.

namespace bluecomm {

static_assert(kKindCount <= kMaxOperationKinds);
constexpr RequestKind request_kind(Kind kind) { return static_cast<RequestKind>(kind); }

// Memory of a result that the engine allocated, and the rows that came from each
// source.
struct Result {
  std::shared_ptr<void> owner;
  std::span<std::byte> bytes;
  std::vector<std::int64_t> rows;
};

// One call of an operation on this rank. See docs/data-plane.md for its states.
class Operation final : public BaseRequest {
 public:
  // What happened to a message handed to deliver().
  enum class Delivery { kTaken, kUnexpected };

  // `request` is complete, `plan` was made from it and may refer to its memory only.
  Operation(RequestId id, Request request, Plan plan, const Envelope& call);

  std::string_view kind_name() const override {
    return bluecomm::kind_name(request_.kind);
  }
  std::string_view name() const override { return request_.name; }
  TraceFields trace_fields() const override {
    return {request_.group->id, call_.key.sequence, request_.input.size()};
  }
  bool holds_memory() const override { return lease_.has_tenants(); }

  const Request& request() const { return request_; }
  const Envelope& call() const { return call_; }
  const Key& key() const { return call_.key; }
  const Plan& plan() const { return plan_; }
  // Memory of the result, where the engine allocates it: set by Request::allocate.
  const Result& result() const { return result_; }
  void set_result(Result result) { result_ = std::move(result); }

  // Sends what the first phase sends. `channels` is indexed by global rank.
  void start(std::span<Channel* const> channels);

  // Takes a message of this call, for the running phase or a later one; leaves an
  // unexpected one where it is.
  Delivery deliver(int peer, const Envelope& envelope,
                   std::unique_ptr<Incoming>& message);

  // Goes on as far as it can, moving about `budget` bytes at most; true when anything
  // changed. Ends with state kDone, or with an error() that the caller spreads.
  bool advance(std::size_t budget);

  // Why this call cannot go on, found by deliver() or advance().
  const std::optional<Status>& error() const { return error_; }

  // Ends the call and cancels its messages.
  void finish(Status status);

  // What the phase now running lacks.
  struct Unfinished {
    std::vector<Missing> missing;
    std::vector<int> not_taken;  // peers that still read what was sent
    std::size_t received = 0;
    std::size_t expected = 0;
  };
  Unfinished unfinished() const;
  // True while this call cannot end without `peer`.
  bool needs(int peer) const;
  // True while a message of `peer` has not even been announced.
  bool awaits_header(int peer) const;
  // A peer without which nothing can be done right now, or -1.
  int blocker();
  // All peers that the plan sends to or receives from, in ascending order.
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

  const Phase& phase() const { return plan_.phases[phase_]; }
  std::optional<SourceIndex> find_source(std::uint32_t phase, int peer,
                                         std::uint32_t slot) const;
  void begin_phase();
  void put(const SourceIndex& index, int peer, const Envelope& envelope,
           std::unique_ptr<Incoming> message);
  bool open_phase();
  void bind();
  bool phase_done();
  void fail_length(int peer, std::size_t announced, std::size_t expected);

  Request request_;
  Plan plan_;
  const Envelope call_;
  std::optional<Status> error_;
  Result result_;

  std::span<Channel* const> channels_;
  std::uint32_t phase_ = 0;
  std::vector<GatherState> gathers_;  // of the running phase
  Lease lease_;
  PendingSends sends_;
  bool open_ = false;  // fillings know their destinations
  std::vector<EarlyMessage> early_;
  std::vector<int> scratch_peers_;
};

}  // namespace bluecomm
