#include "window/service.h"

#include <algorithm>
#include <cstdio>
#include <stdexcept>
#include <utility>

namespace bluecomm {
namespace {

std::string seconds(std::chrono::steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s",
                std::chrono::duration<double>(time).count());
  return text;
}

// The others are asked one at a time, in the order of the calls.
bool uses_lane(WindowAction action) {
  return action == WindowAction::kPut || action == WindowAction::kAccumulate ||
         action == WindowAction::kGet;
}

}  // namespace

// --- Requests ------------------------------------------------------------------------

WindowService::Ticket WindowService::make_ticket(const WindowAccount::Call& call,
                                                 Clock::time_point deadline) const {
  auto ticket = std::make_shared<WindowTicket>();
  ticket->call = call;
  ticket->label = std::string(call_name(call.kind)) + " '" + call.window +
                  "' on rank " + std::to_string(rank_);
  ticket->deadline = deadline;
  return ticket;
}

WindowService::Ticket WindowService::open(WindowPtr window,
                                          Clock::time_point deadline) {
  const std::uint64_t id = window->config().id;
  if (!windows_.emplace(id, window).second) {
    throw std::invalid_argument("window '" + window->config().name + "' exists");
  }
  const Ticket ticket =
      make_ticket(account_.begin(WindowCall::kCreate, window->config().name), deadline);
  const auto found = early_.extract(id);
  Early early = found ? std::move(found.mapped()) : Early{};
  for (Shared& one : early.shared) {
    if (!detached_.contains(one.peer)) attach(*window, std::move(one));
  }
  std::set<int> neighbors(window->config().in_neighbors.begin(),
                          window->config().in_neighbors.end());
  neighbors.insert(window->config().out_neighbors.begin(),
                   window->config().out_neighbors.end());
  bool is_awaited = false;
  for (const int rank : neighbors) {
    WindowMessage message;
    message.window = id;
    message.action = WindowAction::kOpen;
    share_with(rank, window);
    post(rank, message);
    if (early.opens.contains(rank)) continue;
    is_awaited = true;
    add_part({ticket, window, rank, message, {}, nullptr});
  }
  if (!is_awaited) account_.ended(ticket->call, Code::kOk);
  return ticket;
}

// Lets a neighbor on this machine write and read what concerns it.
void WindowService::share_with(int peer, const WindowPtr& window) {
  const WindowConfig& config = window->config();
  WindowMessage message;
  message.window = config.id;
  if (window->has_in_neighbor(peer)) {
    message.action = WindowAction::kShareMailbox;
    share(peer, window, message, window->mailbox_memory(peer));
  }
  if (const auto reader = window->reader_number(peer)) {
    message.action = WindowAction::kShareValue;
    message.other = static_cast<std::int32_t>(*reader);
    message.readers = static_cast<std::uint32_t>(config.out_neighbors.size());
    share(peer, window, message, window->published_memory());
  }
}

void WindowService::share(int peer, const WindowPtr& window, WindowMessage message,
                          std::span<const std::byte> bytes) {
  Channel* const channel = links_.channel(peer);
  if (channel == nullptr || !channel->shares_memory()) return;
  message.mark = mark_;
  sharings_.push_back({window, peer, bytes.size(),
                       channel->send(to_header(message, bytes.size()), bytes)});
}

void WindowService::remove(const Window& window) {
  const std::uint64_t id = window.config().id;
  const auto busy = std::find_if(parts_.begin(), parts_.end(), [&](const auto& entry) {
    return entry.second.window->config().id == id;
  });
  if (busy != parts_.end()) {
    throw std::invalid_argument("win_free '" + window.config().name + "' on rank " +
                                std::to_string(rank_) + ": " +
                                busy->second.ticket->label +
                                " is still under way; wait for its handle first");
  }
  const auto removed = windows_.extract(id);
  if (removed) removed.mapped()->detach_all();
  std::erase_if(sharings_,
                [&](const Sharing& one) { return one.window->config().id == id; });
  std::erase_if(servings_,
                [&](const Serving& one) { return one.window->config().id == id; });
}

WindowService::Ticket WindowService::put(const WindowPtr& window, const Put& put,
                                         Clock::time_point deadline,
                                         const WindowAccount::Call& call) {
  Ticket ticket = make_ticket(call, deadline);
  for (const auto& [rank, weight] : put.targets) {
    WindowMessage message;
    message.action = put.accumulates ? WindowAction::kAccumulate : WindowAction::kPut;
    message.weight = weight;
    message.carries_p = put.with_p ? 1 : 0;
    if (put.with_p) message.p = weight * put.p;
    add_part({ticket, window, rank, message, put.x, nullptr});
  }
  return ticket;
}

WindowService::Ticket WindowService::get(const WindowPtr& window,
                                         const Window::Weights& sources, bool with_p,
                                         Clock::time_point deadline,
                                         const WindowAccount::Call& call) {
  Ticket ticket = make_ticket(call, deadline);
  for (const auto& [rank, weight] : sources) {
    WindowMessage message;
    message.action = WindowAction::kGet;
    message.weight = weight;
    message.carries_p = with_p ? 1 : 0;
    add_part({ticket, window, rank, message, {}, nullptr});
  }
  return ticket;
}

WindowService::Ticket WindowService::lock(const WindowPtr& window, int owner,
                                          Clock::time_point deadline) {
  Ticket ticket =
      make_ticket(account_.begin(WindowCall::kMutex, window->config().name), deadline);
  WindowMessage message;
  message.action = WindowAction::kLock;
  ticket->number = add_part({ticket, window, owner, message, {}, nullptr});
  if (owner == rank_ && !ticket->done()) {
    message.request = ticket->number;
    enter_mutex(rank_, message, *window);
  }
  return ticket;
}

void WindowService::unlock(const WindowPtr& window, int owner,
                           const WindowTicket& ticket) {
  if (parts_.contains(ticket.number)) {
    fail_part(ticket.number, {Code::kInvalid, ticket.label + ": given up", -1});
    return;
  }
  if (owner == rank_) {
    leave_mutex(rank_, ticket.number, *window);
    return;
  }
  WindowMessage message;
  message.window = window->config().id;
  message.request = ticket.number;
  message.action = WindowAction::kCancel;
  post(owner, message);
}

// --- Parts ---------------------------------------------------------------------------

std::uint64_t WindowService::add_part(Part part) {
  const std::uint64_t number = ++last_number_;
  part.message.mark = mark_;
  part.message.window = part.window->config().id;
  part.message.request = number;
  ++part.ticket->unanswered;
  const WindowAction action = part.message.action;
  Part& added = parts_.emplace(number, std::move(part)).first->second;
  if (!closed_.empty()) {
    end_part(number, {Code::kClosed, added.ticket->label + ": " + closed_, rank_});
    return number;
  }
  bool may_send = action == WindowAction::kLock && added.peer != rank_;
  if (uses_lane(action)) {
    auto& lane = lanes_[{added.message.window, added.peer}];
    lane.push_back(number);
    may_send = lane.size() == 1;
  }
  if (may_send) send(added);
  return number;
}

// Of a part that has its effect.
void WindowService::note_exchange(const Part& part) {
  if (!uses_lane(part.message.action)) return;
  const bool is_get = part.message.action == WindowAction::kGet;
  account_.exchanged(part.ticket->call, part.peer,
                     is_get ? WindowAccount::Way::kReceived : WindowAccount::Way::kSent,
                     part.window->config().nbytes);
}

void WindowService::send(Part& part) {
  Channel* const channel = links_.channel(part.peer);
  if (channel == nullptr) return;  // its end is told by fail_gone()
  const Header header = to_header(part.message, part.payload.size());
  part.outgoing = channel->send(header, part.payload);
}

void WindowService::end_part(std::uint64_t number, Status status) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Part part = std::move(found->second);
  parts_.erase(found);
  // An answer that is given up may never be whole.
  std::erase_if(arrivals_, [&](const auto& one) {
    return is_answer(one->message().action) && one->message().request == number;
  });
  WindowTicket& ticket = *part.ticket;
  if (status.ok()) note_exchange(part);
  if (ticket.status.ok()) ticket.status = std::move(status);
  if (--ticket.unanswered == 0) {
    ++completions_;
    const int awaited = part.holder >= 0 ? part.holder : part.peer;
    account_.ended(ticket.call, ticket.status.code, awaited == rank_ ? -1 : awaited);
  }
  if (!uses_lane(part.message.action)) return;
  const auto lane = lanes_.find({part.message.window, part.peer});
  if (lane == lanes_.end()) return;
  const bool was_first = lane->second.front() == number;
  std::erase(lane->second, number);
  if (lane->second.empty()) {
    lanes_.erase(lane);
  } else if (was_first && closed_.empty()) {
    send(parts_.at(lane->second.front()));
  }
}

// The peer is told that no answer is wanted any more.
void WindowService::fail_part(std::uint64_t number, Status status) {
  const Part& part = parts_.at(number);
  if (part.message.action == WindowAction::kLock && part.peer == rank_) {
    leave_mutex(rank_, number, *part.window);
  } else if (part.outgoing) {
    WindowMessage message = part.message;
    message.action = WindowAction::kCancel;
    post(part.peer, message);
  }
  end_part(number, std::move(status));
}

void WindowService::post(int peer, const WindowMessage& message,
                         std::string_view text) {
  Channel* const channel = links_.channel(peer);
  if (channel == nullptr) return;
  WindowMessage marked = message;
  marked.mark = mark_;
  text = text.substr(0, Channel::kMaxPost);
  channel->post(to_header(marked, text.size()), std::as_bytes(std::span(text)));
}

// --- Failures ------------------------------------------------------------------------

std::string WindowService::timeout_text(const Part& part) const {
  const std::string limit = seconds(part.ticket->deadline - part.ticket->call.began);
  const std::string peer = links_.describe_rank(part.peer);
  std::string text = part.ticket->label + ": ";
  if (part.message.action == WindowAction::kLock && part.holder >= 0) {
    return text + "the mutex of " + peer + " is held by " +
           links_.describe_rank(part.holder) + ", which did not release it within " +
           limit;
  }
  if (part.message.action == WindowAction::kOpen) {
    return text + peer + " has not made the window within " + limit;
  }
  return text + "no answer from " + peer + " within " + limit;
}

std::vector<WindowService::Pending> WindowService::pending() const {
  std::map<const WindowTicket*, Pending> pending;
  for (const auto& [number, part] : parts_) {
    Pending& one = pending[part.ticket.get()];
    one.call = part.ticket->call;
    one.waiting_for.insert(part.holder >= 0 ? part.holder : part.peer);
    if (part.message.action == WindowAction::kLock && part.holder >= 0) {
      one.wish = "to release the mutex of " + links_.describe_rank(part.peer);
    } else if (part.message.action == WindowAction::kOpen) {
      one.wish = "to make the window";
    } else {
      one.wish = "to answer";
    }
  }
  std::vector<Pending> list;
  for (auto& [ticket, one] : pending) list.push_back(std::move(one));
  return list;
}

bool WindowService::fail_expired(Clock::time_point now) {
  std::vector<std::uint64_t> expired;
  for (const auto& [number, part] : parts_) {
    if (part.ticket->deadline <= now) expired.push_back(number);
  }
  for (const std::uint64_t number : expired) {
    const Part& part = parts_.at(number);
    fail_part(number, {Code::kTimedOut, timeout_text(part), part.peer});
  }
  return !expired.empty();
}

bool WindowService::fail_gone(int rank) {
  std::vector<std::uint64_t> lost;
  for (const auto& [number, part] : parts_) {
    if (part.peer == rank) lost.push_back(number);
  }
  if (lost.empty()) return false;
  const std::optional<std::string> why = links_.why_gone(rank);
  if (!why) return false;
  for (const std::uint64_t number : lost) {
    const std::string& label = parts_.at(number).ticket->label;
    end_part(number, {Code::kPeerLost, label + ": " + *why, rank});
  }
  return true;
}

bool WindowService::poll(Clock::time_point now, std::span<const int> gone) {
  bool changed = move_arrivals();
  const auto served = std::erase_if(servings_, [](const Serving& one) {
    const bool over = one.outgoing->released() == one.window->config().nbytes;
    if (over) one.window->published().end_read(one.reader);
    return over;
  });
  const auto shared = std::erase_if(sharings_, [&](const Sharing& one) {
    return one.outgoing->released() == one.nbytes || links_.is_gone(one.peer);
  });
  if (served + shared > 0) changed = true;
  for (const int rank : gone) {
    if (detached_.insert(rank).second) {
      for (const auto& [id, window] : windows_) window->detach(rank);
    }
    if (abandon(rank)) changed = true;
    if (fail_gone(rank)) changed = true;
  }
  if (fail_expired(now)) changed = true;
  return changed;
}

WindowService::Clock::time_point WindowService::next_timer() const {
  Clock::time_point next = Clock::time_point::max();
  for (const auto& [number, part] : parts_) {
    next = std::min(next, part.ticket->deadline);
  }
  return next;
}

void WindowService::put_off_deadlines(Clock::duration time) {
  std::set<WindowTicket*> tickets;
  for (const auto& [number, part] : parts_) tickets.insert(part.ticket.get());
  for (WindowTicket* const ticket : tickets) ticket->deadline += time;
}

void WindowService::close(const std::string& why) {
  closed_ = why;
  while (!parts_.empty()) {
    const auto& [number, part] = *parts_.begin();
    end_part(number, {Code::kClosed, part.ticket->label + ": " + closed_, rank_});
  }
}

void WindowService::free() {
  for (const auto& [id, window] : windows_) window->detach_all();
  early_.clear();
  arrivals_.clear();
  servings_.clear();
  sharings_.clear();
  windows_.clear();
}

}  // namespace bluecomm
