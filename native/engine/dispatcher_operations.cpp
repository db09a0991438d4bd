// Starts an operation, moves it on, and ends it. The engine calls these functions under
// its progress lock, on whichever thread leads or calls.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/dispatcher.h"
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
  std::optional<Status> late;
  if (call.raises_late) late = late_failures_.take();
  points_.start(std::move(call), id, std::move(late));
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
  if (!operation->call().raises_late) {
    quiet_groups_.insert(key.group);
  } else if (caller == CalledBy::kProgram) {
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
    if (const std::optional<int> caller = operation.take_told_caller()) {
      stats_.told_caller(operation, *caller, begin);
    }
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

}  // namespace bluecomm
