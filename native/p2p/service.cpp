// Starts sends and receives, moves their bytes and ends them; service_failures.cpp has
// their failures. The engine calls these functions under its progress lock.
#include "p2p/service.h"

#include <algorithm>
#include <exception>
#include <iterator>
#include <utility>

namespace bluecomm {
namespace {

// Bytes of each message that are moved per turn.
constexpr std::size_t kBudget = 1 << 20;

}  // namespace

// --- Starting ------------------------------------------------------------------------

void PointService::start(PointCall call, RequestId id, std::optional<Status> late) {
  PointRequestHost& host = *this;
  const auto request = std::make_shared<PointRequest>(id, rank_, std::move(call), host);
  if (late) request->carry(std::move(*late));
  requests_.add(request);
  if (!closed_.ok()) {
    end(*request, {closed_.code, request->label() + ": " + closed_.text, closed_.rank});
  } else if (request->is_send()) {
    start_send(request);
  } else if (std::optional<SentPoint> sent = matching_.match(request)) {
    begin(std::move(*sent), request);
  } else {
    fail_if_removed(request);
  }
  stats_.submitted(*request);
}

PointMessage PointService::message_of(const PointRequest& send) const {
  const PointCall& call = send.call();
  PointMessage message;
  message.job = job_;
  message.epoch = epoch_;
  message.group = call.group;
  message.tag = call.tag;
  message.send = send.id();
  message.dtype = call.dtype;
  message.count = call.count();
  message.number = credits_[static_cast<std::size_t>(call.peer)].sent();
  message.ndim =
      static_cast<std::uint8_t>(std::min<std::size_t>(call.shape.size(), 255));
  std::copy_n(call.shape.begin(), std::min(call.shape.size(), PointMessage::kMaxDims),
              message.dims.begin());
  return message;
}

void PointService::start_send(const PointRequestPtr& send) {
  const PointCall& call = send->call();
  sends_.push_back(send);
  if (call.gate) {
    poll_values(*send);
    if (send->done()) return;
    if (!send->has_values()) gated_.push_back(send);
  }
  if (call.peer == rank_) {
    SentPoint sent{rank_, message_of(*send), nullptr, send, std::nullopt};
    if (const PointRequestPtr receive = matching_.match(sent)) {
      begin(std::move(sent), receive);
    }
    return;
  }
  Channel* const channel = peers_.channel(call.peer);
  if (channel == nullptr) return;  // fail_gone() will end the send
  PointCredit& credit = credit_of(call.peer);
  if (!credit.may_send() || !send_message(send, *channel)) {
    credit.hold(send);
    return;
  }
  if (send->done() || !is_released(*send)) return;
  sends_.pop_back();
  end(*send, {});
}

// Returns false, and sends nothing, if the transport needs values that have not been
// written.
bool PointService::send_message(const PointRequestPtr& send, Channel& channel) {
  PointCredit& credit = credit_of(send->call().peer);
  credit.count_sent();
  try {
    if (!send->send(channel,
                    to_header(message_of(*send), send->call().memory.size()))) {
      credit.uncount_sent();
      return false;
    }
    stats_.overlapped(send->call().memory.size() - send->written());
  } catch (const std::exception& error) {  // thrown by the transport
    fail(*send, {Code::kInternal, send->label() + ": " + error.what(), -1});
  }
  return true;
}

void PointService::send_held(int peer) {
  PointCredit& credit = credit_of(peer);
  while (Channel* const channel = peers_.channel(peer)) {
    const std::optional<PointCredit::HeldSend> next = credit.next_held();
    if (!next) return;
    if (next->failure) {
      credit.count_sent();
      if (!post(peer, message_of(*next->send), PointAction::kUnsent, *next->failure)) {
        credit.uncount_sent();
        resumes_held_ = true;
        return;
      }
      credit.forget(*next->send);
      continue;
    }
    if (!send_message(next->send, *channel)) return;
    // One that has failed is held until its kUnsent has been posted.
    if (!next->send->done()) credit.forget(*next->send);
  }
}

bool PointService::poll_gates() {
  bool changed = false;
  for (const PointRequestPtr& send : std::exchange(gated_, {})) {
    if (send->done()) continue;
    const std::size_t before = send->written();
    poll_values(*send);
    if (!send->done() && !send->has_values()) gated_.push_back(send);
    if (!send->done() && send->written() == before && !send->has_values()) continue;
    changed = true;
    if (send->call().peer != rank_) send_held(send->call().peer);
  }
  return changed;
}

void PointService::poll_values(PointRequest& send) {
  const Status status = send.poll_values();
  if (status.ok()) return;
  fail(send, {status.code, send.label() + ": " + status.text, status.rank});
}

// --- Receiving -----------------------------------------------------------------------

bool PointService::take_message(int peer, std::unique_ptr<Incoming>& message) {
  const auto read = read_point_message(message->header());
  if (!read || read->job != job_ || read->epoch != epoch_) return false;
  const bool has_values = read->action == PointAction::kPayload;
  if (!has_values) message->accept({});
  if (!has_values && read->action != PointAction::kUnsent) {
    notices_.push_back({peer, *read, std::move(message), "", nullptr});
    read_notices();
    return true;
  }
  credit_of(peer).arrive(read->number);
  SentPoint sent{peer, *read, std::move(message), nullptr, std::nullopt};
  if (removed_groups_.contains(read->group)) {
    credit_of(peer).count_taken();
    decline_removed(std::move(sent));
    return true;
  }
  if (const PointRequestPtr receive = matching_.match(sent)) {
    begin(std::move(sent), receive);
  }
  return true;
}

// Tells a peer how many of its messages no longer wait here, if it is time.
void PointService::report_taken(int peer) {
  PointMessage report;
  report.number = credit_of(peer).take_report();
  if (report.number > 0) post(peer, report, PointAction::kTaken, {});
}

// Starts to copy a message to the receive that it matches.
void PointService::begin(SentPoint sent, const PointRequestPtr& receive) {
  const PointCall& call = receive->call();
  receive->set_source(sent.peer, sent.message.send);
  if (!sent.own) {
    credit_of(sent.peer).count_taken();
    report_taken(sent.peer);
  }
  if (sent.failure) {
    end(*receive, *sent.failure);
    return;
  }
  if (sent.message.action == PointAction::kUnsent) {
    notices_.push_back(
        {sent.peer, sent.message, std::move(sent.incoming), "", receive});
    read_notices();
    return;
  }
  if (sent.message.dtype != call.dtype || sent.message.count != call.count()) {
    const std::string text = mismatch_text(sent, *receive);
    const int peer = sent.peer;
    if (sent.own) {
      std::erase(sends_, sent.own);
      end(*sent.own, {Code::kMismatch, text, rank_});
    } else {
      decline(std::move(sent), {Code::kMismatch, text, rank_});
    }
    end(*receive, {Code::kMismatch, text, peer});
    return;
  }
  const int peer = sent.peer;
  const PointMessage message = sent.message;
  try {
    transfers_.push_back(std::make_unique<PointTransfer>(std::move(sent), receive));
    move(*transfers_.back());
  } catch (const std::exception& error) {  // thrown by the transport
    const Status status{Code::kInternal, receive->label() + ": " + error.what(), -1};
    // fail() tells the sender of a transfer that has begun.
    if (!transfer_of(*receive)) post(peer, message, PointAction::kDecline, status);
    fail(*receive, status);
    return;
  }
  if (receive->done()) transfers_.pop_back();
}

// Moves bytes of a transfer, and ends its receive if that was the last of them. Returns
// whether anything changed; then the receive may be done.
bool PointService::move(PointTransfer& transfer) {
  const PointRequestPtr receive = transfer.receive();
  const Clock::time_point begin = stats_.records() ? Clock::now() : Clock::time_point();
  const bool moved = transfer.move(kBudget);
  if (moved && stats_.records()) stats_.combined(*receive, begin);
  if (moved) requests_.moved(*receive);
  if (!transfer.done()) return moved;
  if (const PointRequestPtr own = transfer.sent().own) {
    std::erase(sends_, own);
    end(*own, {});
  }
  end(*receive, {});
  return true;
}

bool PointService::advance_transfers() {
  bool changed = false;
  for (std::size_t i = 0; i < transfers_.size();) {
    const PointRequestPtr receive = transfers_[i]->receive();
    try {
      if (move(*transfers_[i])) changed = true;
    } catch (const std::exception& error) {  // thrown by the transport
      fail(*receive, {Code::kInternal, receive->label() + ": " + error.what(), -1});
      changed = true;
      continue;  // fail() has removed the transfer
    }
    if (receive->done()) {
      transfers_.erase(transfers_.begin() + static_cast<std::ptrdiff_t>(i));
    } else {
      ++i;
    }
  }
  return changed;
}

// Returns whether nobody reads the values of a send any more.
bool PointService::is_released(const PointRequest& send) const {
  // The receiver may drop values that it declines; the reason is on its way.
  return send.is_sent() && send.has_values() &&
         send.released() == send.call().memory.size() && !has_notice(send.id());
}

// Ends the sends that are released.
bool PointService::release_sends() {
  std::vector<PointRequestPtr> released;
  std::erase_if(sends_, [&](const PointRequestPtr& send) {
    if (!is_released(*send)) return false;
    released.push_back(send);
    return true;
  });
  for (const PointRequestPtr& send : released) end(*send, {});
  return !released.empty();
}

void PointService::end(PointRequest& request, Status status) {
  const bool is_ok = status.ok();
  const int peer = request.source();
  request.finish(std::move(status));
  if (is_ok && peer != rank_) {
    stats_.exchanged(request, peer,
                     request.is_send() ? WaitStats::Direction::kSent
                                       : WaitStats::Direction::kReceived,
                     request.call().memory.size());
  }
  stats_.ended(request, peer == rank_ ? -1 : peer);
  request.raise_carried();
  requests_.end(request);
}

bool PointService::poll(std::span<const int> gone) {
  bool changed = read_notices();
  if (std::exchange(resumes_held_, false)) {
    for (int peer = 0; peer < stats_.size(); ++peer) send_held(peer);
  }
  if (advance_transfers()) changed = true;
  if (release_sends()) changed = true;
  for (const int rank : gone) {
    if (fail_gone(rank)) changed = true;
  }
  if (!gone.empty() && fail_without_source(gone)) changed = true;
  return changed;
}

void PointService::free() {
  transfers_.clear();
  notices_.clear();
  declined_.clear();
  sends_.clear();
  matching_.clear();
  gated_.clear();
}

}  // namespace bluecomm
