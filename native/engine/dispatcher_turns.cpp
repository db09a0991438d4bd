// Takes turns: reads what the transports have brought, routes each message to the call
// that it belongs to, and moves all requests on. The leader calls poll() under the
// progress lock until nothing changes, and sleeps until next_timer().
#include <algorithm>
#include <utility>

#include "engine/dispatcher.h"

namespace bluecomm {

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
  if (points_.resumes_held() && !closing_) {
    next = std::min(next, Clock::now() + kRepostInterval);
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

}  // namespace bluecomm
