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
  for_transports([rank](Transport& one) { one.forget(rank); });
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
  }
  return changed;
}

// Fails the operations that cannot end without a peer that is gone.
bool Dispatcher::fail_needing(int rank, Clock::time_point now) {
  bool changed = false;
  // The last messages of a finished peer may still be in the transport.
  const bool finished = peers_.state(rank) == Peers::State::kFinished;
  for (std::size_t i = 0; i < operations_.size();) {
    Operation& operation = *operations_[i];
    const Clock::time_point grace =
        finished ? std::max(peers_.grace_until(rank),
                            operation.started() + Peers::kFinishedGrace)
                 : peers_.grace_until(rank);
    if (drops_lost(operation) || now < grace ||
        operation.state() == Operation::State::kQueued || !operation.needs(rank)) {
      ++i;
      continue;
    }
    operation.abort(
        {Code::kPeerLost, operation.label() + ": " + peers_.reason(rank), rank});
    changed = true;
  }
  return changed;
}

// --- Going on without a peer ---------------------------------------------------------

bool Dispatcher::drops_lost(const Operation& operation) const {
  return config_.survives_losses && kind_info(operation.call().kind).drops_lost;
}

// Drops a peer that is gone from all running operations, once: start() drops it from
// later ones. Does nothing while messages of a finished peer may still arrive.
bool Dispatcher::drop(int rank, Clock::time_point now) {
  const bool finished = peers_.state(rank) == Peers::State::kFinished;
  if (finished && now < peers_.grace_until(rank)) return false;
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

// Returns whether a peer has failed an operation only because that peer ends, or has
// lost another one.
bool Dispatcher::is_loss(const Envelope& call, const Status& status) const {
  return config_.survives_losses && kind_info(call.kind).drops_lost &&
         (status.code == Code::kClosed || status.code == Code::kPeerLost);
}

// Goes on without a peer that has cut its part of an operation short. Returns false if
// this rank's call has yet to start and would wait for that peer.
bool Dispatcher::go_on_without(Operation* operation, int peer, const Status& status) {
  const bool runs =
      operation != nullptr && operation->state() == Operation::State::kRunning;
  if (runs) replaced_ += operation->drop_peer(peer);
  // A peer that ends is dropped from later calls once its link has ended.
  return runs || status.code == Code::kClosed;
}

}  // namespace bluecomm
