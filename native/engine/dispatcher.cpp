// Starts operations, routes arriving messages, and moves operations on. The engine
// calls these functions under its progress lock, on whichever thread leads; see
// dispatcher_failures.cpp for failures and dispatcher_reports.cpp for reports.
#include "engine/dispatcher.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/planner.h"

namespace bluecomm {
namespace {

// Calls visit(peer, messages sent, messages received, nbytes) for each message of an
// operation: those of its plan, or of its ticket, which the library of a device moves.
template <typename Visit>
void for_each_message(const Operation& operation, Visit&& visit) {
  if (const std::shared_ptr<Ticket>& ticket = operation.call().ticket) {
    for (const LibraryMessage& one : ticket->messages()) {
      visit(one.peer, one.is_sent ? 1U : 0U, one.is_sent ? 0U : 1U, one.nbytes);
    }
    return;
  }
  for (const Phase& phase : operation.plan().phases) {
    for (const Send& send : phase.sends) visit(send.peer, 1U, 0U, send.bytes.size());
    for (const Gather& gather : phase.gathers) {
      for (const Source& source : gather.sources) {
        if (source.peer != kSelf) visit(source.peer, 0U, 1U, gather.dst.size());
      }
    }
  }
}

// The caller may have found the group before another thread removed it.
void check_not_removed(const Groups& groups, std::uint64_t id) {
  if (!groups.was_removed(id)) return;
  throw std::invalid_argument("group " + std::to_string(id) + " was removed");
}

}  // namespace

Dispatcher::Dispatcher(EngineConfig config,
                       std::vector<std::unique_ptr<Transport>> transports)
    : config_(std::move(config)),
      job_(hash_bytes(config_.job)),
      transports_(std::move(transports)),
      peers_(config_.rank, config_.size, config_.machine),
      joining_(config_.size),
      stats_(config_.size, config_.recorder),
      request_peers_(peers_),
      windows_(config_.rank, job_, config_.epoch, request_peers_, requests_, stats_,
               survival_of_windows()),
      points_(config_.rank, job_, config_.epoch, request_peers_, groups_.removed(),
              requests_, stats_,
              [this](int peer, Status failure) {
                add_late_failure(" on " + peers_.describe_rank(peer),
                                 std::move(failure));
              }),
      counted_before_(static_cast<std::size_t>(config_.size)) {}

Dispatcher::~Dispatcher() {
  if (!transports_.empty() || !broken_transports_.empty()) free();
}

std::map<std::string, std::string> Dispatcher::offers() const {
  std::map<std::string, std::string> offers;
  for (const auto& transport : transports_) {
    offers.emplace(transport->name(), transport->offer());
  }
  return offers;
}

void Dispatcher::connect(std::vector<Peer> peers) {
  peers_.connect(std::move(peers), transports_);
  if (config_.survives_losses && config_.size > 1) {
    members_.emplace(peers_, job_, config_.epoch, member_news_, config_.look_at_process,
                     config_.minority);
  }
}

void Dispatcher::add_group(Group group) {
  for (const int rank : group.ranks) {
    if (rank != config_.rank && !peers_.is_peer(rank)) {
      throw std::invalid_argument("rank " + std::to_string(rank) + " is not in 0 .. " +
                                  std::to_string(config_.size - 1));
    }
  }
  groups_.add(std::move(group));
}

std::shared_ptr<const Group> Dispatcher::group(std::uint64_t id) const {
  std::shared_ptr<const Group> found = groups_.find(id);
  if (!found) throw std::invalid_argument("there is no group " + std::to_string(id));
  return found;
}

Operation& Dispatcher::operation(RequestId id) const {
  BaseRequest& request = *requests_.at(id);
  if (!is_operation(request.kind())) {
    throw std::invalid_argument(request.label() + " is not an operation");
  }
  return static_cast<Operation&>(request);
}

// --- Submitting ----------------------------------------------------------------------

RequestId Dispatcher::submit(Call call, RequestId id) {
  const std::uint64_t group = call.group->id;
  check_not_removed(groups_, group);
  const std::uint64_t name = name_hash(call);
  const std::uint32_t sequence = matching_.next_sequence(group, name);
  return add(std::move(call), {group, name, config_.epoch, sequence},
             CalledBy::kProgram, id == 0 ? requests_.next_id() : id);
}

RequestId Dispatcher::submit(PointCall call, RequestId id) {
  check_not_removed(groups_, call.group);
  if (id == 0) id = requests_.next_id();
  points_.start(std::move(call), id, late_failures_.take());
  return id;
}

RequestId Dispatcher::add(Call call, const Key& key, CalledBy caller, RequestId id) {
  call.allocate = [this, id](std::size_t nbytes, std::span<const std::int64_t> rows) {
    Result result = config_.allocate(nbytes);
    result.rows.assign(rows.begin(), rows.end());
    const std::span<std::byte> bytes = result.bytes;
    operation(id).set_result(std::move(result));
    return bytes;
  };
  Plan plan = caller == CalledBy::kProgram ? plan_or_refuse(call, key)
                                           : make_plan(call, config_.tuning);
  Envelope envelope =
      make_envelope(call, plan.algorithm, job_, key.epoch, key.sequence);
  envelope.key = key;  // the name of an answered call may be cut
  OperationHost* const host = this;
  auto operation =
      std::make_shared<Operation>(id, std::move(call), std::move(plan), envelope, host);
  // The program does not see how an operation ends that it has not called.
  if (caller == CalledBy::kProgram) {
    if (auto late = late_failures_.take()) operation->carry(std::move(*late));
  }
  now_ = operation->started();
  requests_.add(operation);
  operations_.push_back(operation.get());
  if (operation->call().ticket) ++tickets_;
  const bool must_wait = matching_.add(operation);
  if (joining_.must_announce()) announce(*operation);

  try {
    for (Unmatched& one : matching_.take(envelope.key)) {
      match(one.peer, one.envelope, std::move(one.message));
    }
  } catch (const std::exception& error) {
    fail_thrown(*operation, error);
  }
  if (!must_wait && operation->state() == Operation::State::kQueued) {
    start_when_ready(*operation);
  }
  stats_.submitted(*operation);
  return id;
}

// Notes whether an operation waits for a gate, which next_timer() then has polled.
void Dispatcher::hold_back(Operation& operation, bool held_back) {
  if (operation.is_held_back() == held_back) return;
  operation.set_held_back(held_back);
  held_back ? ++held_back_ : --held_back_;
}

// Polls the gate of an operation. Returns whether anything changed.
bool Dispatcher::resume(Operation& operation) {
  if (operation.state() == Operation::State::kQueued) {
    return start_when_ready(operation);
  }
  operation.poll_input();
  return advance(operation);
}

// Starts an operation whose turn it is, or holds it back while too little of its input
// has been written. Returns whether anything changed.
bool Dispatcher::start_when_ready(Operation& operation) {
  // A call that has failed at a peer does not wait for its input. The peer's next call
  // of the name would make it fail for a wrong reason.
  if (const std::optional<Status> abort = matching_.abort_of(operation.key())) {
    fail_operation(operation, *abort);
    return true;
  }
  operation.poll_input();
  if (operation.error()) {
    fail_operation(operation, *operation.error());
    return true;
  }
  hold_back(operation, !operation.may_start());
  if (operation.is_held_back()) return false;
  start(operation);
  return true;
}

void Dispatcher::start(Operation& operation) {
  if (closing_) {
    fail_operation(operation,
                   {Code::kClosed, operation.label() + ": the engine is closed", -1});
    return;
  }
  if (!broken_.ok()) {
    fail_operation(operation,
                   {broken_.code, operation.label() + ": " + broken_.text, -1});
    return;
  }
  if (fail_for_removers(operation)) return;
  try {
    if (!peers_.dropped().empty()) drop_lost(operation);
    stats_.overlapped(operation.unwritten_input().size());
    operation.start(peers_.channels());
  } catch (const std::exception& error) {
    fail_thrown(operation, error);
    return;
  }
  advance(operation);
}

// --- Receiving -----------------------------------------------------------------------

void Dispatcher::on_message(int peer, std::unique_ptr<Incoming> message) {
  arrived_.push_back({peer, std::move(message)});
}

bool Dispatcher::read_arrivals() {
  std::vector<Arrived> arrived = std::exchange(arrived_, {});
  for (Arrived& one : arrived) {
    const MessageType type = type_of(one.message->header());
    if (members_ && type == MessageType::kMember &&
        members_->take_message(one.peer, one.message)) {
      continue;
    }
    if (peers_.is_dropped(one.peer)) continue;  // operations go on without it
    if (type == MessageType::kWindow && windows_.take_message(one.peer, one.message)) {
      continue;
    }
    if (type == MessageType::kPoint && points_.take_message(one.peer, one.message)) {
      continue;
    }
    const std::optional<Envelope> envelope = read_envelope(one.message->header());
    if (!envelope || envelope->job != job_ || envelope->key.epoch != config_.epoch) {
      peers_.lose(one.peer,
                  "it sent a message that does not belong to this job or this version "
                  "of bluecomm");
    } else if (envelope->type == MessageType::kJoin) {
      one.message->accept({});
      handle_join(one.peer, envelope->key.sequence);
    } else if (envelope->type != MessageType::kData) {
      one.message->accept({});
      aborts_.push_back({one.peer, *envelope, std::move(one.message), ""});
      read_aborts();
    } else {
      match(one.peer, *envelope, std::move(one.message));
    }
  }
  if (read_aborts()) return true;
  return !arrived.empty();
}

void Dispatcher::match(int peer, const Envelope& envelope,
                       std::unique_ptr<Incoming> message) {
  // A peer's headers arrive in order, and it starts a call only after its earlier calls
  // of the name have ended. If one of those failed, the peer has sent an ABORT.
  Operation* const earlier = matching_.find_earlier(envelope.key);
  if (earlier != nullptr && awaits_more(*earlier, peer)) {
    fail_forgotten(*earlier, peer);
  }
  Operation* const operation = matching_.find(envelope.key);
  if (operation != nullptr) {
    if (!agree(operation->envelope(), envelope)) {
      fail_mismatch(*operation, peer, envelope);
    } else if (operation->deliver(peer, envelope, message) ==
               Operation::Delivery::kUnexpected) {
      fail_unexpected(peer, envelope);
    } else if (envelope.phase == 0) {
      stats_.header(*operation, peer, now_);
    }
    return;
  }
  switch (matching_.standing(envelope.key)) {
    case Matching::Standing::kFuture:
      if (groups_.was_removed(envelope.key.group)) {
        send_group_removed(peer, envelope);
        return;
      }
      // If the call has failed at a peer, it will fail here without its messages.
      if (!matching_.abort_of(envelope.key)) {
        matching_.keep({peer, envelope, std::move(message)});
      }
      return;
    case Matching::Standing::kUnfinished:
    case Matching::Standing::kPast:
      if (!matching_.has_failed(envelope.key)) fail_unexpected(peer, envelope);
      return;
  }
}

void Dispatcher::on_lost(int peer, Status status) {
  peers_.lose(peer, std::move(status.text));
  if (members_) members_->note_end(peer);
}

void Dispatcher::on_goodbye(int peer) {
  peers_.finish(peer);
  if (members_) members_->note_goodbye(peer);
}

// --- Moving on -----------------------------------------------------------------------

bool Dispatcher::poll() {
  std::uint64_t completions = requests_.completions();
  const bool changed = take_turn();
  // A caller whose request has ended may never poll again, and its process may end. So
  // messages that this turn has queued, and that other ranks may wait for, are sent
  // now, in further turns.
  while (requests_.completions() != completions && has_unsent()) {
    completions = requests_.completions();
    take_turn();
  }
  return changed;
}

bool Dispatcher::has_unsent() const {
  return std::any_of(transports_.begin(), transports_.end(),
                     [](const auto& transport) { return transport->has_unsent(); });
}

bool Dispatcher::take_turn() {
  bool changed = false;
  now_ = Clock::now();
  for_transports([&](Transport& one) {
    if (one.poll(*this)) changed = true;
  });
  tell_failed_device();
  if (requests_.has_held()) requests_.check_held();
  if (read_arrivals()) changed = true;
  if (!answers_.empty()) release_answers();
  const bool has_gates = held_back_ > 0 || points_.has_gated();
  const bool polls_gates = has_gates && now_ >= next_gate_poll_;
  if (polls_gates) next_gate_poll_ = now_ + kGateInterval;
  for (std::size_t i = 0; i < operations_.size();) {
    Operation* const operation = operations_[i];
    const bool is_gated = operation->is_held_back();
    const bool waits = is_gated && !operation->is_filling();
    if (is_gated && polls_gates ? resume(*operation) : !waits && advance(*operation)) {
      changed = true;
    }
    if (i < operations_.size() && operations_[i] == operation) ++i;
  }
  if (windows_.poll(peers_.gone())) changed = true;
  if (polls_gates && points_.poll_gates()) changed = true;
  if (points_.poll(peers_.gone())) changed = true;
  if (!deadlines_pause_ && expire_requests(now_)) changed = true;
  if (members_) poll_members(now_);
  if (!peers_.gone().empty() && settle_losses(now_)) changed = true;
  return changed;
}

bool Dispatcher::advance(Operation& operation) {
  const Clock::time_point begin = stats_.records() ? Clock::now() : now_;
  bool changed = false;
  try {
    changed = operation.advance(kBudget);
  } catch (const std::exception& error) {
    fail_thrown(operation, error);
    return true;
  }
  if (changed && stats_.records()) stats_.combined(operation, begin);
  if (changed) {
    requests_.moved(operation);
    stats_.moved(operation, begin);
  } else if (const int blocker = operation.blocker(); blocker >= 0) {
    stats_.stalled(operation, blocker, begin);
  }
  if (operation.error()) {
    fail_operation(operation, *operation.error());
    return true;
  }
  if (operation.state() == Operation::State::kDone) {
    end(operation);
    return true;
  }
  hold_back(operation, operation.awaits_gate() || operation.is_filling());
  return changed;
}

// Counts an operation that is done, takes it from the active ones, and starts the next
// operation of its name.
void Dispatcher::end(Operation& operation) {
  stats_.ended(operation);
  if (operation.succeeded()) {
    stats_.exchanged(operation,
                     [&](const auto& visit) { for_each_message(operation, visit); });
  }
  hold_back(operation, false);
  if (operation.call().ticket) --tickets_;
  operation.raise_carried();
  requests_.end(operation);
  operations_.erase(std::find(operations_.begin(), operations_.end(), &operation));
  if (const std::shared_ptr<Operation> next = matching_.remove(operation)) {
    start_when_ready(*next);
  }
}

Clock::time_point Dispatcher::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& transport : transports_) {
    next = std::min(next, transport->next_timer());
  }
  if (!deadlines_pause_) next = std::min(next, requests_.next_deadline());
  if (members_ && !closing_) next = std::min(next, members_->next_timer());
  if (failure_watcher_ && !closing_ && failure_watcher_->is_working()) {
    next = std::min(next, Clock::now() + kTicketInterval);
  }
  const auto must_tell = [this](int rank) { return must_tell_watcher(rank); };
  if (!outstanding() &&
      std::none_of(peers_.gone().begin(), peers_.gone().end(), must_tell)) {
    return next;
  }
  const Clock::time_point now = Clock::now();
  if (held_back_ > 0 || points_.has_gated()) next = std::min(next, next_gate_poll_);
  if (tickets_ > 0) next = std::min(next, now + kTicketInterval);
  for (const int rank : peers_.gone()) {
    const Clock::time_point grace = peers_.grace_until(rank);
    next = std::min(next, grace > now ? grace : now + Peers::kFinishedGrace);
  }
  return next;
}

// --- Results -------------------------------------------------------------------------

bool Dispatcher::has_result(RequestId id) const {
  const BaseRequest& request = *requests_.at(id);
  if (!request.succeeded()) return false;
  if (request.kind() == RequestKind::kRecv) {
    return static_cast<const PointRequest&>(request).call().peer == kAnySource;
  }
  return is_operation(request.kind()) &&
         static_cast<const Operation&>(request).result().owner;
}

bool Dispatcher::release_if_plain(RequestId id) {
  if (!requests_.at(id)->succeeded() || has_result(id)) return false;
  requests_.release(id);
  return true;
}

const Result& Dispatcher::result(RequestId id) const {
  if (!has_result(id)) {
    throw std::invalid_argument("request " + std::to_string(id) +
                                " has no result of its own");
  }
  return operation(id).result();
}

int Dispatcher::source_of(RequestId id) const {
  const BaseRequest& request = *requests_.at(id);
  if (request.kind() != RequestKind::kRecv || !request.succeeded()) {
    throw std::invalid_argument(request.label() + " has received nothing");
  }
  return static_cast<const PointRequest&>(request).source();
}

// --- Closing -------------------------------------------------------------------------

void Dispatcher::close() {
  closing_ = true;
  const std::string why =
      "cut short, because rank " + std::to_string(config_.rank) + " shut down";
  fail_all(Code::kClosed, why, config_.rank);
  for_transports([](Transport& one) { one.close(); });
}

void Dispatcher::release_backends() {
  for_transports([](Transport& one) { one.release_backend(); });
}

void Dispatcher::free() {
  if (requests_.outstanding()) windows_.close(Code::kClosed, "the engine ended");
  while (requests_.outstanding()) {
    BaseRequest& request = *requests_.oldest();
    request.finish({Code::kClosed, request.label() + ": the engine ended", -1});
    requests_.end(request);
  }
  operations_.clear();
  matching_ = Matching();
  arrived_.clear();
  aborts_.clear();
  windows_.free();
  points_.free();
  members_.reset();
  peers_.disconnect();
  transports_.clear();
  broken_transports_.clear();
  requests_.check_held();
  requests_.never_free_held();
}

void Dispatcher::abandon_after_fork() noexcept {
  for (const auto* const list : {&transports_, &broken_transports_}) {
    for (const auto& transport : *list) transport->abandon_after_fork();
  }
}

bool Dispatcher::closed() const {
  return std::all_of(transports_.begin(), transports_.end(),
                     [](const auto& transport) { return transport->closed(); });
}

}  // namespace bluecomm
