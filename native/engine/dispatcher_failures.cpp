// How operations fail, and how the other ranks learn of it. The engine calls these
// functions under its progress lock.
//
// The rank that finds a failure ends its own operation and sends ABORT(key, code, text)
// to all ranks that take part in it, so that all raise the same error. An ABORT that
// arrives before the call is kept for it. If the call has already succeeded here, the
// next operation that the program starts raises the error when that operation ends. In
// neighbor operations each rank passes the ABORT on to its own neighbors, because they
// are not all neighbors of the first rank.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "common/shorten.h"
#include "engine/describe.h"
#include "engine/dispatcher.h"

namespace bluecomm {

void Dispatcher::fail(RequestId id, Status status) {
  BaseRequest& request = *requests_.at(id);
  if (!request.done()) request.abort(std::move(status));
}

void Dispatcher::fail_all(Code code, const std::string& text, int rank) {
  windows_.close(code, text);
  points_.close({code, text, rank});
  // Ending an operation may start the next one of its name, which fails in turn.
  while (requests_.outstanding()) {
    BaseRequest& request = *requests_.oldest();
    request.abort({code, request.label() + ": " + text, rank});
  }
}

std::vector<int> Dispatcher::participants(const Operation& operation) const {
  const Call& call = operation.call();
  // The library of a device needs all members, also those that exchange nothing.
  const bool needs_all = call.ticket != nullptr || call.precedes_ticket;
  if (!needs_all && (kind_info(call.kind).spares_group || call.local_only)) {
    return operation.peers();
  }
  std::vector<int> ranks = call.group->ranks;
  std::erase(ranks, config_.rank);
  return ranks;
}

void Dispatcher::fail_operation(Operation& operation, Status status) {
  matching_.remember_failure(operation.key());
  if (!is_dropped_by_others(operation)) {
    // The ABORT has to arrive before the other ranks notice that their messages were
    // dropped.
    for (const int rank : participants(operation)) {
      send_abort(rank, operation.envelope(), status);
    }
  }
  operation.finish(std::move(status));
  end(operation);
}

void Dispatcher::send_abort(int peer, const Envelope& call, const Status& status) {
  Envelope abort = call;
  abort.type = MessageType::kAbort;
  abort.code = static_cast<std::int32_t>(status.code);
  abort.blamed = status.rank;
  const std::string_view text = shorten(status.text, Channel::kMaxPost);
  post(peer, abort, std::as_bytes(std::span(text)));
}

// Sends a message that is not part of a plan to a peer, if there is a link to it.
void Dispatcher::post(int peer, const Envelope& message,
                      std::span<const std::byte> payload) {
  Channel* const channel = peers_.channels()[static_cast<std::size_t>(peer)];
  if (channel == nullptr || !peers_.alive(peer)) return;
  try {
    channel->post(to_header(message, payload.size()), payload);
  } catch (const std::exception&) {
    // The peer cannot be told. Its own deadline, or the end of this process, will fail
    // its operation.
  }
}

// --- Exceptions ----------------------------------------------------------------------

void Dispatcher::fail_thrown(Operation& operation, const std::exception& error) {
  if (operation.state() == Operation::State::kDone) return;
  fail_operation(operation,
                 {Code::kInternal, operation.label() + ": " + error.what(), -1});
}

// Runs `body` for each transport. A transport that throws is in an unknown state: it is
// not called again, and all requests of this rank fail, now and later.
void Dispatcher::for_transports(const std::function<void(Transport&)>& body) {
  for (std::size_t i = 0; i < transports_.size();) {
    try {
      body(*transports_[i]);
      ++i;
    } catch (const std::exception& error) {
      broken_transports_.push_back(std::move(transports_[i]));
      transports_.erase(transports_.begin() + static_cast<std::ptrdiff_t>(i));
      broken_ = {Code::kInternal,
                 "rank " + std::to_string(config_.rank) +
                     " cannot communicate any more, because its transport " +
                     std::string(broken_transports_.back()->name()) +
                     " failed: " + error.what(),
                 -1};
      fail_all(Code::kInternal, std::string(broken_.text), -1);
    }
  }
}

// --- Disagreement --------------------------------------------------------------------

void Dispatcher::fail_mismatch(Operation& operation, int peer, const Envelope& theirs) {
  const Envelope ours = operation.envelope();
  Status status{
      Code::kMismatch,
      describe_mismatch(operation.call().name,
                        {config_.rank, peers_.describe_rank(config_.rank), ours},
                        {peer, peers_.describe_rank(peer), theirs}),
      peer};
  fail_operation(operation, status);
  // The peer may be a rank with which this rank's call exchanges no messages.
  send_abort(peer, ours, status);
}

// Fails the call of a message that this rank's call does not expect.
void Dispatcher::fail_unexpected(int peer, const Envelope& theirs) {
  const std::string here = peers_.describe_rank(config_.rank);
  const std::string there = peers_.describe_rank(peer);
  const std::string_view remedy =
      kind_info(theirs.kind).spares_group
          ? "The destinations of each rank must match the sources of the other."
          : "All ranks must pass the same arguments.";
  std::string text = describe_operation(theirs, theirs.name_text());
  text.append(": ").append(there).append(" called ").append(describe_call(theirs));
  text.append(", where it sends to ").append(here).append(", but ").append(here);
  text.append(" does not receive from ").append(there).append(" in its call. ");
  const Status status{Code::kMismatch, text.append(remedy), peer};
  Operation* const operation = matching_.find(theirs.key);
  if (operation != nullptr) {
    fail_operation(*operation, status);
  } else {
    matching_.remember_failure(theirs.key);
    if (!quiet_groups_.contains(theirs.key.group)) add_late_failure("", status);
  }
  send_abort(peer, theirs, status);
}

// Fails an operation because the peer has made its next call without sending a message
// that the operation needs.
void Dispatcher::fail_forgotten(Operation& operation, int peer) {
  const std::string here = peers_.describe_rank(config_.rank);
  const std::string there = peers_.describe_rank(peer);
  const Status status{Code::kMismatch,
                      describe_operation(operation.envelope(), operation.call().name) +
                          ": " + here + " receives from " + there + ", but " + there +
                          " has ended this call without sending to " + here +
                          ". The sources of each rank must match the destinations of "
                          "the other.",
                      peer};
  const Envelope call = operation.envelope();
  fail_operation(operation, status);
  send_abort(peer, call, status);
}

// --- Failures that peers report ------------------------------------------------------

bool Dispatcher::read_aborts() {
  bool changed = false;
  for (std::size_t i = 0; i < aborts_.size();) {
    Abort& abort = aborts_[i];
    const std::span<const std::byte> part = abort.message->readable();
    abort.text.append(reinterpret_cast<const char*>(part.data()), part.size());
    abort.message->consume(part.size());
    if (abort.message->consumed() < abort.message->header().nbytes) {
      ++i;
      continue;
    }
    const Abort whole = std::move(abort);
    aborts_.erase(aborts_.begin() + static_cast<std::ptrdiff_t>(i));
    if (whole.envelope.type == MessageType::kAnnounce) {
      handle_announcement(whole.peer, whole.envelope, whole.text);
    } else if (whole.envelope.type == MessageType::kFailing) {
      peers_.explain(whole.peer,
                     peers_.describe_process(whole.peer) + " " + whole.text);
    } else if (whole.envelope.type == MessageType::kGroupRemoved) {
      handle_group_removed(whole.peer, whole.envelope.key.group);
    } else if (whole.envelope.type == MessageType::kDeviceFailed) {
      if (failure_watcher_) {
        failure_watcher_->note_failed_device(whole.peer, whole.text);
      }
    } else {
      handle_abort(whole.peer, whole.envelope, whole.text);
    }
    changed = true;
  }
  return changed;
}

bool Dispatcher::has_abort(int peer, const Key& key) const {
  return std::any_of(aborts_.begin(), aborts_.end(), [&](const Abort& one) {
    return one.peer == peer && one.envelope.type == MessageType::kAbort &&
           one.envelope.key == key;
  });
}

void Dispatcher::handle_abort(int peer, const Envelope& envelope, std::string text) {
  const Key& key = envelope.key;
  if (matching_.has_failed(key)) return;
  // A rank that is blamed for a mismatch blames the rank that reported it.
  const bool names_another = envelope.blamed >= 0 && envelope.blamed != config_.rank;
  const int blamed = names_another ? envelope.blamed : peer;
  Status status{static_cast<Code>(envelope.code), std::move(text), blamed};
  if (status.ok()) status.code = Code::kInternal;
  if (groups_.was_removed(key.group)) {
    // If another member than the peer has removed the group, the peer's call awaited a
    // message of that member. So it has no number, and no device waits for it, or that
    // member tells of the failure, too.
    if (status.code != Code::kFreed || envelope.blamed == peer) {
      tell_watcher_of_ticket(envelope, status);
    }
    return;
  }
  Operation* const operation = matching_.find(key);
  if (is_loss(envelope, status)) {
    go_on_without(operation, peer);
    return;
  }
  if (operation != nullptr) {
    fail_operation(*operation, std::move(status));
    return;
  }
  switch (matching_.standing(key)) {
    case Matching::Standing::kFuture:
      matching_.keep_abort(key, std::move(status));
      return;
    case Matching::Standing::kUnfinished:
    case Matching::Standing::kPast:
      note_late_failure(peer, envelope, std::move(status));
      return;
  }
}

// Notes that a call has failed on `peer` after it had ended on this rank.
void Dispatcher::note_late_failure(int peer, const Envelope& envelope, Status status) {
  matching_.remember_failure(envelope.key);
  tell_watcher_of_ticket(envelope, status);
  if (!is_withdrawal(status.code) && !quiet_groups_.contains(envelope.key.group)) {
    add_late_failure(" on " + peers_.describe_rank(peer), std::move(status));
  }
}

// The library of this rank's device may wait for that of a peer whose call has failed,
// also if the peer has ended its part on purpose, or this rank has removed the group.
void Dispatcher::tell_watcher_of_ticket(const Envelope& call, const Status& status) {
  if (failure_watcher_ && call.algorithm == Algorithm::kTicket) {
    failure_watcher_->note_failed_ticket(call.key.group, status);
  }
}

// Notes the failure of an operation that has succeeded on this rank. `where` is empty
// or a text such as " on rank 1 (hostB)".
void Dispatcher::add_late_failure(const std::string& where, Status status) {
  // In a job that survives losses, a loss fails only operations that need the lost
  // rank.
  if (config_.survives_losses && status.code == Code::kPeerLost) return;
  status.text = "an earlier operation failed" + where + " after rank " +
                std::to_string(config_.rank) +
                " had finished its part of it: " + status.text;
  late_failures_.add(std::move(status));
}

// --- Removed groups ------------------------------------------------------------------

void Dispatcher::remove_group(std::uint64_t id) {
  const std::shared_ptr<const Group> removed = group(id);
  groups_.remove(id);
  quiet_groups_.erase(id);
  const auto of_group = [id](const Operation* one) {
    return one->call().group->id == id;
  };
  // Ending an operation may start the next one of its name, which fails in turn.
  for (auto found = operations_.begin();
       (found = std::find_if(operations_.begin(), operations_.end(), of_group)) !=
       operations_.end();) {
    Operation& operation = **found;
    fail_operation(
        operation,
        {Code::kFreed, operation.label() + ": " + group_removed_text(), config_.rank});
  }
  for (const Unmatched& one : matching_.remove_group(id)) {
    send_group_removed(one.peer, one.envelope);
  }
  points_.remove_group(id);
  Envelope notice;
  notice.type = MessageType::kGroupRemoved;
  notice.job = job_;
  notice.key.group = id;
  notice.key.epoch = config_.epoch;
  for (const int rank : removed->ranks) {
    if (rank != config_.rank) post(rank, notice, {});
  }
}

// Fails the calls of a group that await what a member, which has removed it, has not
// sent. Its earlier messages have arrived before the notice.
void Dispatcher::handle_group_removed(int peer, std::uint64_t id) {
  groups_.note_removed_by(id, peer);
  if (failure_watcher_) {
    failure_watcher_->note_removed_group(
        id, {Code::kFreed, group_removed_text(peer), peer});
  }
  const auto awaits_peer = [&](const Operation* one) {
    const Group& group = *one->call().group;
    return (group.id == id || group.parent == id) && awaits_more(*one, peer);
  };
  // Ending an operation may start the next one of its name, which fails in turn.
  for (auto found = operations_.begin();
       (found = std::find_if(operations_.begin(), operations_.end(), awaits_peer)) !=
       operations_.end();) {
    fail_for_remover(**found, peer);
  }
  points_.note_removed_by(id, peer);
}

// Fails a call that awaits messages of members that have removed its group or the
// parent of that. Returns whether it does.
bool Dispatcher::fail_for_removers(Operation& operation) {
  const Group& group = *operation.call().group;
  for (const std::uint64_t id : {group.id, group.parent.value_or(group.id)}) {
    const std::set<int>* const removers = groups_.removed().removers(id);
    if (removers == nullptr) continue;
    const auto remover = std::ranges::find_if(
        *removers, [&](int rank) { return awaits_more(operation, rank); });
    if (remover == removers->end()) continue;
    fail_for_remover(operation, *remover);
    return true;
  }
  return false;
}

// Returns whether an operation awaits a message of a peer, but no ABORT.
bool Dispatcher::awaits_more(const Operation& operation, int peer) const {
  return operation.awaits_header(peer) && !has_abort(peer, operation.key());
}

void Dispatcher::fail_for_remover(Operation& operation, int remover) {
  fail_operation(
      operation,
      {Code::kFreed, operation.label() + ": " + group_removed_text(remover), remover});
}

std::string Dispatcher::group_removed_text(std::optional<int> remover) const {
  return removed_by_text(peers_.describe_rank(remover.value_or(config_.rank)));
}

// Fails the call of a peer that waits for this rank.
void Dispatcher::send_group_removed(int peer, const Envelope& call) {
  send_abort(peer, call,
             {Code::kFreed,
              describe_operation(call, call.name_text()) + " on " +
                  peers_.describe_rank(peer) + ": " + group_removed_text(),
              config_.rank});
}

// --- Time ----------------------------------------------------------------------------

Status Dispatcher::timeout_status(const Operation& operation) const {
  const std::string label = operation.label();
  if (operation.awaits_gate()) {
    return {Code::kTimedOut,
            label +
                ": all ranks have called it, but NCCL has not taken the call in "
                "time: its communicator has not started, or an earlier call has "
                "not been taken",
            -1};
  }
  if (operation.is_held_back()) {
    return {Code::kTimedOut, label + ": " + std::string(kLateDevice), -1};
  }
  if (operation.state() == Operation::State::kQueued) {
    return {Code::kTimedOut,
            label + ": an earlier call of the same name has not ended in time", -1};
  }
  const Operation::Unfinished unfinished = operation.unfinished();
  const auto waited = operation.deadline() - operation.started();
  std::string text =
      label + ": " + describe_missing(unfinished.missing, unfinished.not_taken, waited);
  int blamed = -1;
  if (!unfinished.missing.empty()) {
    blamed = unfinished.missing.front().peer;
  } else if (!unfinished.not_taken.empty()) {
    blamed = unfinished.not_taken.front();
  }
  if (blamed >= 0) {
    if (const auto call = matching_.announced_by(blamed)) {
      text += "; " + peers_.describe_rank(blamed) + " has called " +
              describe_operation(*call, call->name_text()) +
              ", which this rank has not called yet";
    }
  }
  return {Code::kTimedOut, text, blamed};
}

bool Dispatcher::expire_requests(Clock::time_point now) {
  const auto expired = requests_.expired(now);
  for (const std::shared_ptr<BaseRequest>& request : expired) {
    // The failure of another request may have ended this one.
    if (!request->done()) request->expire();
  }
  return !expired.empty();
}

void Dispatcher::expire_operation(Operation& operation) {
  fail_operation(operation, timeout_status(operation));
}

void Dispatcher::tell_failing(const std::string& what) {
  tell_all(MessageType::kFailing, what);
}

// Tells the other ranks once if this rank's device has failed.
void Dispatcher::tell_failed_device() {
  if (!failure_watcher_ || has_told_failed_device_) return;
  const std::optional<Status> failed = failure_watcher_->device_failure();
  if (!failed) return;
  has_told_failed_device_ = true;
  tell_all(MessageType::kDeviceFailed, failed->text);
}

void Dispatcher::tell_all(MessageType type, const std::string& what) {
  Envelope message;
  message.type = type;
  message.job = job_;
  message.key.epoch = config_.epoch;
  const std::string_view text = shorten(what, Channel::kMaxPost);
  for (int rank = 0; rank < peers_.size(); ++rank) {
    post(rank, message, std::as_bytes(std::span(text)));
  }
}

}  // namespace bluecomm
