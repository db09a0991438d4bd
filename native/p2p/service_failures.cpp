// How sends and receives fail, and how the other side learns of it. The engine calls
// these functions under its progress lock.
//
// The side that finds a failure tells the other one: kCancel from the sender, or
// kUnsent if it has not sent the message, and kDecline from the receiver. So both raise
// the same error, unless the send has already succeeded: then its rank raises the error
// when its next call ends.
#include <algorithm>
#include <cstdio>
#include <exception>
#include <set>
#include <string_view>
#include <utility>

#include "common/shorten.h"
#include "p2p/service.h"

namespace bluecomm {
namespace {

constexpr std::size_t kShownTags = 4;

std::string seconds(Clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s",
                std::chrono::duration<double>(time).count());
  return text;
}

// Returns a text such as: float32 [4, 4]
std::string describe(DType dtype, std::span<const std::int64_t> dims,
                     std::size_t ndim) {
  std::string text(dtype_name(dtype));
  text += " [";
  for (std::size_t i = 0; i < ndim; ++i) {
    if (i > 0) text += ", ";
    if (i == dims.size()) {
      text += "...";
      break;
    }
    text += std::to_string(dims[i]);
  }
  return text + "]";
}

}  // namespace

std::string PointService::mismatch_text(const SentPoint& sent,
                                        const PointRequest& receive) const {
  const PointMessage& message = sent.message;
  const PointCall& call = receive.call();
  const std::string sent_values = describe(message.dtype, message.dims, message.ndim);
  const std::string asked = describe(call.dtype, call.shape, call.shape.size());
  return "send and recv with tag " + std::to_string(call.tag) +
         " do not match: " + peers_.describe_rank(sent.peer) + " called send " +
         sent_values + " (" + std::to_string(message.count) + " elements) to " +
         peers_.describe_rank(rank_) + ", which called recv " + asked + " (" +
         std::to_string(call.count()) +
         " elements). Both must pass the same dtype and number of elements.";
}

// --- Ending a request ----------------------------------------------------------------

void PointService::fail(PointRequest& request, Status status) {
  if (request.is_send()) {
    failed_.insert(request.id(), true);
    if (request.call().peer == rank_) {
      if (const PointTransfer* const transfer = transfer_of(request)) {
        const PointRequestPtr receive = transfer->receive();
        drop_transfer(*receive);
        end(*receive, status);
      } else {
        leave_unsent(request, status);
      }
    } else if (request.is_sent()) {
      // The cancel has to arrive before the receiver notices that the values were
      // dropped.
      post(request.call().peer, message_of(request), PointAction::kCancel, status);
    } else {
      leave_unsent(request, status);
    }
    std::erase_if(sends_, [&](const auto& one) { return one.get() == &request; });
  } else if (const PointTransfer* const transfer = transfer_of(request)) {
    if (const PointRequestPtr own = transfer->sent().own) {
      std::erase(sends_, own);
      end(*own, status);
    } else {
      post(transfer->sent().peer, transfer->sent().message, PointAction::kDecline,
           status);
    }
    drop_transfer(request);
  } else {
    matching_.remove(request);
  }
  end(request, std::move(status));
}

// Has the receive that a send would have matched fail, unless its rank learns of the
// reason in another way: from the end of this rank or of the group, or is lost itself.
void PointService::leave_unsent(const PointRequest& send, const Status& status) {
  const int peer = send.call().peer;
  const auto found = std::ranges::find_if(
      sends_, [&](const PointRequestPtr& one) { return one.get() == &send; });
  if (found == sends_.end()) return;
  if (peer == rank_) {
    leave_own_unsent(*found, status);
  } else if (is_withdrawal(status.code) || peers_.channel(peer) == nullptr) {
    credit_of(peer).forget(send);
    resumes_held_ = true;
  } else {
    credit_of(peer).hold_failed(*found, status);
    send_held(peer);
  }
}

// Like leave_unsent(). A send to this rank that nobody receives in time leaves nothing.
void PointService::leave_own_unsent(const PointRequestPtr& send, const Status& status) {
  if (is_withdrawal(status.code) || status.code == Code::kTimedOut) {
    matching_.remove_own(*send);
    return;
  }
  if (matching_.mark_own_failed(*send, status)) return;
  SentPoint sent{rank_, message_of(*send), nullptr, send, status};
  if (const PointRequestPtr receive = matching_.match(sent)) {
    begin(std::move(sent), receive);
  }
}

void PointService::drop_transfer(const PointRequest& receive) {
  std::erase_if(transfers_,
                [&](const auto& one) { return one->receive().get() == &receive; });
}

const PointTransfer* PointService::transfer_of(const PointRequest& request) const {
  const auto found =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& one) {
        return one->receive().get() == &request || one->sent().own.get() == &request;
      });
  return found == transfers_.end() ? nullptr : found->get();
}

// Posts a message with a reason. Returns false if the transport has thrown.
bool PointService::post(int peer, PointMessage message, PointAction action,
                        const Status& status) {
  Channel* const channel = peers_.channel(peer);
  if (channel == nullptr) return true;
  message.job = job_;
  message.epoch = epoch_;
  message.action = action;
  message.code = static_cast<std::int32_t>(status.code);
  message.blamed = status.rank;
  const std::string_view text = shorten(status.text, Channel::kMaxPost);
  try {
    channel->post(to_header(message, text.size()), std::as_bytes(std::span(text)));
    return true;
  } catch (const std::exception&) {
    // The peer cannot be told. Its own deadline, or the end of this process, will fail
    // its request.
    return false;
  }
}

void PointService::decline(SentPoint sent, const Status& status) {
  post(sent.peer, sent.message, PointAction::kDecline, status);
  if (peers_.channel(sent.peer) != nullptr) declined_.push_back(std::move(sent));
}

void PointService::remove_group(std::uint64_t group) {
  const std::string why = removed_by_text(peers_.describe_rank(rank_));
  std::vector<PointRequestPtr> concerned = matching_.waiting_receives();
  concerned.insert(concerned.end(), sends_.begin(), sends_.end());
  for (const auto& transfer : transfers_) concerned.push_back(transfer->receive());
  for (const Notice& notice : notices_) {
    if (notice.receive) concerned.push_back(notice.receive);
  }
  for (const PointRequestPtr& request : concerned) {
    if (request->call().group != group || request->done()) continue;
    fail(*request, {Code::kFreed, request->label() + ": " + why, rank_});
  }
  for (SentPoint& sent : matching_.take_messages(group)) {
    if (!sent.own) credit_of(sent.peer).count_taken();
    if (!sent.failure) decline_removed(std::move(sent));
  }
}

// Fails the send of a peer to this rank in a group that this rank has removed.
void PointService::decline_removed(SentPoint sent) {
  report_taken(sent.peer);
  if (sent.message.action == PointAction::kUnsent) return;  // the send has failed
  const std::string call = "send with tag " + std::to_string(sent.message.tag) +
                           " to " + peers_.describe_rank(rank_);
  const std::string why = removed_by_text(peers_.describe_rank(rank_));
  decline(std::move(sent), {Code::kFreed, call + ": " + why, rank_});
}

void PointService::note_removed_by(std::uint64_t group, int peer) {
  for (const PointRequestPtr& receive : matching_.waiting_receives()) {
    const PointCall& call = receive->call();
    if (call.group != group) continue;
    if (call.peer == peer || call.peer == kAnySource) fail_if_removed(receive);
  }
}

// Fails a receive that waits, if no rank is left that could send, because one or all
// have removed the group.
void PointService::fail_if_removed(const PointRequestPtr& receive) {
  const PointCall& call = receive->call();
  const std::set<int>* const removers = removed_groups_.removers(call.group);
  if (removers == nullptr) return;
  const bool is_from_any = call.peer == kAnySource;
  if (is_from_any ? has_source(*receive) : !removers->contains(call.peer)) return;
  const int remover = is_from_any ? *removers->begin() : call.peer;
  const std::string why = removed_by_text(peers_.describe_rank(remover));
  fail(*receive, {Code::kFreed, receive->label() + ": " + why, remover});
}

// Returns whether a rank is left that could send to a receive from any rank. This rank
// itself does not count.
bool PointService::has_source(const PointRequest& receive) const {
  const PointCall& call = receive.call();
  const std::set<int>* const removers = removed_groups_.removers(call.group);
  return std::ranges::any_of(*call.members, [&](int rank) {
    if (rank == rank_ || (removers != nullptr && removers->contains(rank))) {
      return false;
    }
    return !peers_.why_gone(rank, receive.started());
  });
}

// --- Failures that peers report ------------------------------------------------------

bool PointService::has_notice(RequestId send) const {
  return std::any_of(notices_.begin(), notices_.end(), [&](const Notice& one) {
    return one.message.action == PointAction::kDecline && one.message.send == send;
  });
}

bool PointService::read_notices() {
  bool changed = false;
  for (std::size_t i = 0; i < notices_.size();) {
    Notice& notice = notices_[i];
    const std::span<const std::byte> part = notice.incoming->readable();
    notice.text.append(reinterpret_cast<const char*>(part.data()), part.size());
    notice.incoming->consume(part.size());
    if (notice.incoming->consumed() < notice.incoming->header().nbytes) {
      ++i;
      continue;
    }
    Notice whole = std::move(notice);
    notices_.erase(notices_.begin() + static_cast<std::ptrdiff_t>(i));
    const PointMessage& message = whole.message;
    // A rank that is blamed for a mismatch blames the rank that reported it.
    const bool names_another = message.blamed >= 0 && message.blamed != rank_ &&
                               message.blamed < stats_.size();
    Status status{static_cast<Code>(message.code), std::move(whole.text),
                  names_another ? message.blamed : whole.peer};
    if (status.ok()) status.code = Code::kInternal;
    if (message.action == PointAction::kTaken) {
      credit_of(whole.peer).set_taken(message.number);
      send_held(whole.peer);
    } else if (message.action == PointAction::kCancel) {
      credit_of(whole.peer).set_sent(message.number);
      report_taken(whole.peer);
      handle_cancel(whole.peer, message.send, std::move(status));
    } else if (message.action == PointAction::kUnsent) {
      if (!whole.receive->done()) end(*whole.receive, std::move(status));
    } else {
      handle_decline(whole.peer, message, std::move(status));
    }
    changed = true;
  }
  return changed;
}

void PointService::handle_cancel(int peer, RequestId send, Status status) {
  const auto dropped = std::erase_if(declined_, [&](const SentPoint& one) {
    return one.peer == peer && one.message.send == send;
  });
  if (dropped > 0) return;
  const auto found =
      std::find_if(transfers_.begin(), transfers_.end(), [&](const auto& one) {
        return one->sent().incoming && one->sent().peer == peer &&
               one->sent().message.send == send;
      });
  if (found == transfers_.end()) {
    matching_.mark_failed(peer, send, status);
    return;
  }
  const PointRequestPtr receive = (*found)->receive();
  transfers_.erase(found);
  end(*receive, std::move(status));
}

void PointService::handle_decline(int peer, const PointMessage& message,
                                  Status status) {
  const RequestId send = message.send;
  if (failed_.contains(send)) return;  // the receiver has got a kCancel
  const auto found = std::find_if(sends_.begin(), sends_.end(), [&](const auto& one) {
    return one->id() == send && one->call().peer == peer;
  });
  if (found != sends_.end()) {
    const PointRequestPtr request = *found;
    sends_.erase(found);
    end(*request, std::move(status));
  } else if (!is_withdrawal(status.code)) {
    on_late_failure_(peer, std::move(status));
  }
  post(peer, message, PointAction::kCancel, {});
}

// --- Time and loss -------------------------------------------------------------------

BaseRequest::Awaited PointService::awaited(const PointRequest& request) const {
  const PointCall& call = request.call();
  BaseRequest::Awaited awaited;
  if (!request.has_values()) {
    awaited.wish = "its GPU";
    return awaited;
  }
  if (request.is_send()) {
    awaited.ranks.insert(call.peer);
    awaited.wish = "to receive with tag " + std::to_string(call.tag);
    return awaited;
  }
  awaited.expected_bytes = call.memory.size();
  awaited.wish = "to send with tag " + std::to_string(call.tag);
  if (const PointTransfer* const transfer = transfer_of(request)) {
    awaited.received_bytes = transfer->received();
    awaited.ranks.insert(transfer->sent().peer);
  } else if (call.peer != kAnySource) {
    awaited.ranks.insert(call.peer);
  } else {
    for (const int rank : *call.members) {
      if (rank != rank_ && !peers_.is_gone(rank)) awaited.ranks.insert(rank);
    }
  }
  return awaited;
}

Status PointService::timeout_status(const PointRequest& request) const {
  const PointCall& call = request.call();
  const std::string within =
      " within " + seconds(request.deadline() - request.started());
  std::string text = request.label() + ": ";
  if (!request.has_values()) {
    return {Code::kTimedOut, text + std::string(kLateDevice), -1};
  }
  if (request.is_send()) {
    text += peers_.describe_rank(call.peer) + " did not receive it" + within;
    if (request.is_sent() || call.peer == rank_) {
      text += "; it must call recv with this tag and this source";
    } else {
      text += "; the send waited in this rank, because ";
      text += credits_[static_cast<std::size_t>(call.peer)].is_spent()
                  ? std::to_string(PointCredit::kLimit) +
                        " earlier messages wait there for a recv"
                  : "an earlier send to that rank waits for its GPU";
    }
    return {Code::kTimedOut, text, call.peer};
  }
  if (const PointTransfer* const transfer = transfer_of(request)) {
    const int peer = transfer->sent().peer;
    text += "received only " + std::to_string(transfer->received()) + " of " +
            std::to_string(call.memory.size()) + " bytes from " +
            peers_.describe_rank(peer) + within;
    return {Code::kTimedOut, text, peer};
  }
  text += call.peer == kAnySource ? "no rank" : peers_.describe_rank(call.peer);
  text += call.peer == kAnySource ? " has sent to this rank" : " has not sent it";
  text += within;
  const std::vector<std::int64_t> tags = matching_.waiting_tags(call, kShownTags);
  for (std::size_t i = 0; i < tags.size(); ++i) {
    text += (i == 0 ? "; messages with other tags wait here: " : ", ") +
            std::to_string(tags[i]);
  }
  return {Code::kTimedOut, text, call.peer};
}

void PointService::expire(PointRequest& request) {
  fail(request, timeout_status(request));
}

// Fails the requests that can no longer be served because `rank` is lost.
bool PointService::fail_gone(int rank) {
  if (peers_.channel(rank) == nullptr) credit_of(rank).forget_failed();
  std::vector<PointRequestPtr> concerned;
  for (const PointRequestPtr& send : sends_) {
    if (send->call().peer == rank) concerned.push_back(send);
  }
  for (const auto& transfer : transfers_) {
    if (transfer->sent().peer == rank) concerned.push_back(transfer->receive());
  }
  for (const Notice& notice : notices_) {
    if (notice.receive && notice.peer == rank) concerned.push_back(notice.receive);
  }
  for (const PointRequestPtr& receive : matching_.waiting_receives()) {
    if (receive->call().peer == rank) concerned.push_back(receive);
  }
  if (!declined_.empty() && peers_.why_gone(rank, Clock::time_point::min())) {
    std::erase_if(declined_, [&](const SentPoint& one) { return one.peer == rank; });
  }
  bool changed = false;
  for (const PointRequestPtr& request : concerned) {
    const std::optional<std::string> why = peers_.why_gone(rank, request->started());
    if (!why || request->done()) continue;
    fail(*request, {Code::kPeerLost, request->label() + ": " + *why, rank});
    changed = true;
  }
  return changed;
}

// Fails the receives from any rank to which no rank is left that could send, because
// some are lost. This rank itself does not count, unless it is the only member.
bool PointService::fail_without_source(std::span<const int> gone) {
  bool changed = false;
  for (const PointRequestPtr& receive : matching_.waiting_receives()) {
    const std::vector<int>& members = *receive->call().members;
    if (receive->call().peer != kAnySource || members.size() == 1) continue;
    const auto last = std::find_if(gone.rbegin(), gone.rend(), [&](int rank) {
      return std::find(members.begin(), members.end(), rank) != members.end();
    });
    if (last == gone.rend() || has_source(*receive)) continue;
    fail(*receive,
         {Code::kPeerLost,
          receive->label() + ": no possible source is left; the last was lost: " +
              *peers_.why_gone(*last, receive->started()),
          *last});
    changed = true;
  }
  return changed;
}

}  // namespace bluecomm
