// Ends operations whose peer is lost or has finished, or lets them go on without it.
// The engine calls these functions under its progress lock; docs/survival.md has the
// states.
//
// By default an operation that still needs the peer fails, once the control plane has
// had time to report the reason. In a job that survives losses, operations whose kind
// `drops_lost` go on without the peer at once, those that are running and all later
// ones.
#include <algorithm>
#include <stdexcept>
#include <utility>

#include "engine/dispatcher.h"

namespace bluecomm {

void Dispatcher::peer_lost(int rank, std::string text) {
  if (!peers_.is_peer(rank)) {
    throw std::invalid_argument("rank " + std::to_string(rank) +
                                " is not a peer of rank " +
                                std::to_string(config_.rank));
  }
  peers_.explain(rank, std::move(text));
  if (members_) members_->note_death(rank);
  for_transports([rank](Transport& one) { one.forget(rank); });
}

void Dispatcher::leave_members(std::string text) {
  if (!members_) return;
  members_->leave(std::move(text));
  poll_members(Clock::now());
}

// Acts on what the members have decided.
void Dispatcher::poll_members(Clock::time_point now) {
  if (!closing_) members_->poll(now);
  for (const MemberChange& gone : members_->take_gone()) {
    if (gone.cause == "stopped" || gone.cause == "silent" || gone.cause == "broken" ||
        gone.cause == "apart") {
      peers_.explain(gone.rank, gone.text);
    } else {
      // The control plane will know the reason.
      peers_.lose(gone.rank, "the other ranks have gone on without it");
    }
  }
  const std::optional<std::string>& why = members_->why_excluded();
  if (why && broken_.ok()) {
    broken_ = {Code::kPeerLost, *why, -1};
    fail_all(Code::kPeerLost, *why, -1);
  }
}

bool Dispatcher::settle_losses(Clock::time_point now) {
  bool changed = false;
  if (std::exchange(has_early_, false)) {
    for (Operation* const operation : operations_) {
      if (operation->state() == Operation::State::kRunning) drop_lost(*operation);
    }
    changed = true;
  }
  for (const int rank : peers_.gone()) {
    if (config_.survives_losses && drop(rank, now)) changed = true;
    if (fail_needing(rank, now)) changed = true;
    tell_watcher(rank, now);
  }
  return changed;
}

// Fails the operations that cannot end without a peer that is gone.
bool Dispatcher::fail_needing(int rank, Clock::time_point now) {
  bool changed = false;
  // The last messages of a finished peer may still be in the transport.
  const bool finished = peers_.state(rank) == Peers::State::kFinished;
  const bool is_held = holds_for(rank);
  for (std::size_t i = 0; i < operations_.size();) {
    Operation& operation = *operations_[i];
    const Clock::time_point grace =
        finished ? std::max(peers_.grace_until(rank),
                            operation.started() + Peers::kFinishedGrace)
                 : peers_.grace_until(rank);
    if (drops_lost(operation) || is_held || now < grace ||
        operation.state() == Operation::State::kQueued || !operation.needs(rank)) {
      ++i;
      continue;
    }
    operation.abort(
        {Code::kPeerLost, operation.label() + ": " + peers_.reason(rank), rank});
    // An operation needs the peer, so the members decide without waiting for the end
    // of its process.
    if (finished && members_) members_->note_death(rank);
    changed = true;
  }
  return changed;
}

bool Dispatcher::must_tell_watcher(int rank) const {
  return failure_watcher_ && peers_.state(rank) == Peers::State::kLost &&
         !told_losses_.contains(rank);
}

// Tells the watcher of a rank that is lost, once the control plane has had time to
// report the reason, and this rank does not hold.
void Dispatcher::tell_watcher(int rank, Clock::time_point now) {
  if (!must_tell_watcher(rank) || now < peers_.grace_until(rank)) return;
  if (holds_for(rank)) return;
  told_losses_.insert(rank);
  failure_watcher_->note_lost(rank, peers_.reason(rank));
}

// --- Going on without a peer ---------------------------------------------------------

// Returns whether operations wait for a peer whose link has ended. They do while this
// rank reaches too few members, because then it is perhaps this rank that is cut off.
bool Dispatcher::holds_for(int rank) const {
  return members_ && members_->is_held() && !members_->is_gone(rank) &&
         !peers_.is_explained(rank) && peers_.state(rank) == Peers::State::kLost;
}

// The library of a device needs all members, so a call with a ticket drops none.
bool Dispatcher::drops_lost(const Operation& operation) const {
  return config_.survives_losses && kind_info(operation.call().kind).drops_lost &&
         operation.call().ticket == nullptr;
}

// Returns whether the other ranks go on with an operation without this rank, which is
// no member any more. They may not know this yet, and then an ABORT would fail their
// call.
bool Dispatcher::is_dropped_by_others(const Operation& operation) const {
  return members_ && members_->why_excluded() && drops_lost(operation);
}

// Drops a peer that is gone from all running operations, once: start() drops it from
// later ones. Does nothing while messages of a finished peer may still arrive.
bool Dispatcher::drop(int rank, Clock::time_point now) {
  const bool finished = peers_.state(rank) == Peers::State::kFinished;
  if ((finished && now < peers_.grace_until(rank)) || holds_for(rank)) return false;
  if (!peers_.drop(rank)) return false;
  for (Operation* const operation : operations_) {
    if (drops_lost(*operation) && operation->state() == Operation::State::kRunning) {
      replaced_ += operation->drop_peer(rank);
    }
  }
  return true;
}

// Drops all peers that are gone from an operation that starts, or has just started.
// Messages that arrived from them before the call become readable in between.
void Dispatcher::drop_lost(Operation& operation) {
  if (!drops_lost(operation)) return;
  has_early_ = operation.state() == Operation::State::kQueued;
  for (const int rank : peers_.dropped()) replaced_ += operation.drop_peer(rank);
}

std::optional<WindowService::Survival> Dispatcher::survival_of_windows() {
  if (!config_.survives_losses) return std::nullopt;
  return WindowService::Survival{[this](int rank) {
    return !peers_.is_here(rank) || (members_ && members_->has_ended(rank));
  }};
}

// Returns whether a peer has failed an operation only because that peer ends. A peer
// that has freed the process set lives on, so it is not lost.
bool Dispatcher::is_loss(const Envelope& call, const Status& status) const {
  return config_.survives_losses && kind_info(call.kind).drops_lost &&
         call.algorithm != Algorithm::kTicket && status.code == Code::kClosed;
}

// Goes on without a peer that has cut its part of an operation short. It is dropped
// from later calls once its link has ended.
void Dispatcher::go_on_without(Operation* operation, int peer) {
  if (operation != nullptr && operation->state() == Operation::State::kRunning) {
    replaced_ += operation->drop_peer(peer);
  }
}

}  // namespace bluecomm
