// Starts this rank's requests about windows, sends their parts and ends them. The
// engine calls these functions under its progress lock; service_for_peers.cpp serves
// the requests of other ranks.
#include "window/service.h"

#include <algorithm>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <utility>

#include "common/shorten.h"

namespace bluecomm {
namespace {

std::string seconds(std::chrono::steady_clock::duration time) {
  char text[32];
  std::snprintf(text, sizeof text, "%.3g s",
                std::chrono::duration<double>(time).count());
  return text;
}

// Returns whether parts of this kind are sent one at a time, in the order of the calls.
bool uses_lane(WindowAction action) {
  return action == WindowAction::kPut || action == WindowAction::kAccumulate ||
         action == WindowAction::kGet;
}

}  // namespace

// --- Requests ------------------------------------------------------------------------

WindowService::RequestPtr WindowService::open(WindowPtr window,
                                              Clock::time_point deadline) {
  const std::uint64_t id = window->config().id;
  release_removed();
  if (!windows_.emplace(id, window).second) {
    throw std::invalid_argument("window '" + window->config().name +
                                "' already exists");
  }
  const auto request = std::make_shared<WindowRequest>(
      requests_.next_id(), RequestKind::kWinCreate, window, deadline);
  const auto found = early_.extract(id);
  Early early = found ? std::move(found.mapped()) : Early{};
  for (Shared& one : early.shared) {
    if (!detached_.contains(one.peer)) attach(*window, std::move(one));
  }
  std::set<int> neighbors(window->config().in_neighbors.begin(),
                          window->config().in_neighbors.end());
  neighbors.insert(window->config().out_neighbors.begin(),
                   window->config().out_neighbors.end());
  std::vector<Part> parts;
  for (const int rank : neighbors) {
    WindowMessage message;
    message.window = id;
    message.action = WindowAction::kOpen;
    const auto& readers = window->config().out_neighbors;
    if (window->has_in_neighbor(rank)) share_mailbox(rank, window);
    if (std::binary_search(readers.begin(), readers.end(), rank)) {
      share_value(rank, window);
    }
    post(rank, message);
    if (early.opens.contains(rank)) continue;
    parts.push_back({request, rank, message, {}, nullptr});
  }
  start(request, std::move(parts));
  if (survival_) {
    for (const int rank : abandoned_) window->retire(rank);
  }
  return request;
}

// Share this rank's memory with a neighbor on the same machine.
void WindowService::share_mailbox(int peer, const WindowPtr& window) {
  WindowMessage message;
  message.window = window->config().id;
  message.action = WindowAction::kShareMailbox;
  share(peer, window, message, window->mailbox_memory(peer));
}

// Does nothing the second time, because the peer maps the memory only once.
void WindowService::share_value(int peer, const WindowPtr& window) {
  if (!window->sees_value.insert(peer).second) return;
  WindowMessage message;
  message.window = window->config().id;
  message.action = WindowAction::kShareValue;
  message.other = static_cast<std::int32_t>(*window->reader_number(peer));
  message.readers = static_cast<std::uint32_t>(window->readers());
  share(peer, window, message, window->published_memory());
}

void WindowService::connect(const WindowPtr& window, const std::vector<int>& sources,
                            const std::vector<int>& targets) {
  for (const int rank : sources) {
    // The peer attaches the memory before it learns that it may put.
    share_mailbox(rank, window);
    WindowMessage message;
    message.window = window->config().id;
    message.action = WindowAction::kAccepts;
    post(rank, message);
  }
  for (const int rank : targets) share_value(rank, window);
  // Values that peers have shared before this rank had edges from them.
  if (auto early = early_.extract(window->config().id)) {
    for (Shared& one : early.mapped().shared) attach(*window, std::move(one));
  }
  for (const int rank : abandoned_) window->retire(rank);
}

void WindowService::share(int peer, const WindowPtr& window, WindowMessage message,
                          std::span<const std::byte> bytes) {
  Channel* const channel = peers_.channel(peer);
  if (channel == nullptr || !channel->shares_memory()) return;
  sharings_.push_back({window, peer, bytes.size(),
                       channel->send(header_of(message, bytes.size()), bytes)});
}

const WindowService::Part* WindowService::find_part(const Window& window) const {
  for (const auto& [number, part] : parts_) {
    if (part.request->window()->config().id == window.config().id) return &part;
  }
  return nullptr;
}

void WindowService::remove(const Window& window) {
  const std::uint64_t id = window.config().id;
  if (const Part* const part = find_part(window)) {
    throw std::invalid_argument("win_free '" + window.config().name + "' on rank " +
                                std::to_string(rank_) + ": " + part->request->label() +
                                " is still under way; wait for its handle first");
  }
  const auto removed = windows_.extract(id);
  if (removed) {
    removed.mapped()->detach_all();
    if (survival_) removed_.push_back(removed.mapped());
  }
  early_.erase(id);
  std::erase_if(sharings_,
                [&](const Sharing& one) { return one.window->config().id == id; });
  std::erase_if(servings_,
                [&](const Serving& one) { return one.window->config().id == id; });
}

void WindowService::put(const RequestPtr& request, const WindowPut& put) {
  std::vector<Part> parts;
  for (const auto& [rank, weight] : put.targets) {
    WindowMessage message;
    message.action = put.accumulates ? WindowAction::kAccumulate : WindowAction::kPut;
    message.weight = weight;
    message.carries_p = put.with_p ? 1 : 0;
    if (put.with_p) message.p = weight * put.p;
    message.is_sum = put.is_sum ? 1 : 0;
    message.signal = request->window()->signal(rank);
    parts.push_back({request, rank, message, put.x, nullptr});
  }
  start(request, std::move(parts));
}

void WindowService::get(const RequestPtr& request, const WindowGet& get) {
  std::vector<Part> parts;
  for (const auto& [rank, weight] : get.sources) {
    WindowMessage message;
    message.action = WindowAction::kGet;
    message.weight = weight;
    message.carries_p = get.with_p ? 1 : 0;
    parts.push_back({request, rank, message, {}, nullptr});
  }
  start(request, std::move(parts));
}

WindowService::RequestPtr WindowService::lock(const WindowPtr& window, int owner,
                                              Clock::time_point deadline) {
  const auto request = std::make_shared<WindowRequest>(
      requests_.next_id(), RequestKind::kWinMutex, window, deadline);
  WindowMessage message;
  message.action = WindowAction::kLock;
  std::vector<Part> parts;
  parts.push_back({request, owner, message, {}, nullptr});
  start(request, std::move(parts));
  if (owner == rank_ && !request->done()) {
    message.request = request->id();
    enter_mutex(rank_, message, *window);
  }
  return request;
}

void WindowService::unlock(const WindowPtr& window, int owner, RequestId id) {
  if (const auto found = parts_.find(id); found != parts_.end()) {
    fail_part(id, {Code::kInvalid, found->second.request->label() + ": cancelled", -1});
    return;
  }
  if (owner == rank_) {
    leave_mutex(rank_, id, *window);
    return;
  }
  WindowMessage message;
  message.window = window->config().id;
  message.request = id;
  message.action = WindowAction::kCancel;
  post(owner, message);
}

// --- Parts ---------------------------------------------------------------------------

void WindowService::start(const RequestPtr& request, std::vector<Part> parts) {
  requests_.add(request);
  std::vector<RequestId> numbers;
  numbers.reserve(parts.size());
  for (std::size_t i = 0; i < parts.size(); ++i) {
    numbers.push_back(i == 0 ? request->id() : requests_.next_id());
  }
  request->enter(*this, numbers);
  if (parts.empty()) finish(*request, -1);
  for (std::size_t i = 0; i < parts.size(); ++i) {
    add_part(numbers[i], std::move(parts[i]));
  }
}

Header WindowService::header_of(WindowMessage message, std::size_t nbytes) const {
  message.job = job_;
  message.epoch = epoch_;
  return to_header(message, nbytes);
}

void WindowService::add_part(RequestId number, Part part) {
  part.message.window = part.request->window()->config().id;
  part.message.request = number;
  const WindowAction action = part.message.action;
  Part& added = parts_.emplace(number, std::move(part)).first->second;
  if (!closed_.ok()) {
    end_part(number,
             {closed_.code, added.request->label() + ": " + closed_.text, rank_});
    return;
  }
  if (peers_.is_dropped(added.peer)) {
    drop_part(number);
    return;
  }
  bool may_send = action == WindowAction::kLock && added.peer != rank_;
  if (uses_lane(action)) {
    auto& lane = lanes_[{added.message.window, added.peer}];
    lane.push_back(number);
    may_send = lane.size() == 1;
  }
  if (may_send) send(added);
}

// Counts the value that a successful part has exchanged.
void WindowService::note_exchange(const Part& part) {
  if (!uses_lane(part.message.action)) return;
  const bool is_get = part.message.action == WindowAction::kGet;
  stats_.exchanged(
      *part.request, part.peer,
      is_get ? WaitStats::Direction::kReceived : WaitStats::Direction::kSent,
      part.request->window()->config().value_nbytes());
}

// Sends the question of a part. Ends the part, which must not be used afterwards, if
// the transport fails.
void WindowService::send(Part& part) {
  Channel* const channel = peers_.channel(part.peer);
  if (channel == nullptr) return;  // poll() will end the part
  const Header header = header_of(part.message, part.payload.size());
  try {
    part.outgoing = channel->send(header, part.payload);
  } catch (const std::exception& error) {  // thrown by the transport
    end_part(part.message.request,
             {Code::kInternal, part.request->label() + ": " + error.what(), -1});
  }
}

void WindowService::end_part(RequestId number, Status status) {
  const auto found = parts_.find(number);
  if (found == parts_.end()) return;
  Part part = std::move(found->second);
  parts_.erase(found);
  // The rest of an answer to a failed part may never arrive.
  std::erase_if(arrivals_, [&](const auto& one) {
    return is_answer(one->message().action) && one->message().request == number;
  });
  if (status.ok() && !part.is_dropped) note_exchange(part);
  if (!status.ok() && uses_lane(part.message.action)) {
    part.request->window()->forget_back(part.peer);
  }
  if (part.request->end_part(number, std::move(status))) {
    const int awaited = part.holder >= 0 ? part.holder : part.peer;
    finish(*part.request, awaited == rank_ ? -1 : awaited);
  }
  if (!uses_lane(part.message.action)) return;
  const auto lane = lanes_.find({part.message.window, part.peer});
  if (lane == lanes_.end()) return;
  const bool was_first = lane->second.front() == number;
  std::erase(lane->second, number);
  if (lane->second.empty()) {
    lanes_.erase(lane);
  } else if (was_first && closed_.ok()) {
    send(parts_.at(lane->second.front()));
  }
}

// Ends a request whose parts have all ended. `awaited` is the rank that it has waited
// for, or -1.
void WindowService::finish(WindowRequest& request, int awaited) {
  request.finish();
  stats_.ended(request, awaited);
  requests_.end(request);
}

// Fails a part, and tells the peer that an answer is no longer wanted.
void WindowService::fail_part(RequestId number, Status status) {
  const Part& part = parts_.at(number);
  if (part.message.action == WindowAction::kLock && part.peer == rank_) {
    leave_mutex(rank_, number, *part.request->window());
  } else if (part.outgoing) {
    WindowMessage message = part.message;
    message.action = WindowAction::kCancel;
    post(part.peer, message);
  }
  end_part(number, std::move(status));
}

void WindowService::post(int peer, const WindowMessage& message,
                         std::string_view text) {
  Channel* const channel = peers_.channel(peer);
  if (channel == nullptr) return;
  text = shorten(text, Channel::kMaxPost);
  channel->post(header_of(message, text.size()), std::as_bytes(std::span(text)));
}

// --- Failures ------------------------------------------------------------------------

std::string WindowService::timeout_text(const Part& part) const {
  const std::string limit = seconds(part.request->deadline() - part.request->started());
  const std::string peer = peers_.describe_rank(part.peer);
  std::string text = part.request->label() + ": ";
  if (part.message.action == WindowAction::kLock && part.holder >= 0) {
    return text + "the mutex of " + peer + " is held by " +
           peers_.describe_rank(part.holder) + ", which did not release it within " +
           limit;
  }
  if (part.message.action == WindowAction::kOpen) {
    return text + peer + " has not created the window within " + limit;
  }
  return text + "no answer from " + peer + " within " + limit;
}

BaseRequest::Awaited WindowService::awaited(const WindowRequest& request) const {
  BaseRequest::Awaited awaited;
  for (const RequestId number : request.unanswered()) {
    const Part& part = parts_.at(number);
    awaited.ranks.insert(part.holder >= 0 ? part.holder : part.peer);
    if (part.message.action == WindowAction::kLock && part.holder >= 0) {
      awaited.wish = "to release the mutex of " + peers_.describe_rank(part.peer);
    } else if (part.message.action == WindowAction::kOpen) {
      awaited.wish = "to create the window";
    } else {
      awaited.wish = "to answer";
    }
  }
  return awaited;
}

void WindowService::fail(const WindowRequest& request, const Status& status) {
  const std::vector<RequestId> parts = request.unanswered();
  for (const RequestId number : parts) fail_part(number, status);
}

void WindowService::expire(const WindowRequest& request) {
  const std::vector<RequestId> parts = request.unanswered();
  for (const RequestId number : parts) {
    const Part& part = parts_.at(number);
    fail_part(number, {Code::kTimedOut, timeout_text(part), part.peer});
  }
}

bool WindowService::poll(std::span<const int> gone) {
  bool changed = move_arrivals();
  const auto served = std::erase_if(servings_, [](const Serving& one) {
    const bool over = one.outgoing->released() == one.window->config().nbytes;
    if (over) end_serving(one);
    return over;
  });
  const auto shared = std::erase_if(sharings_, [&](const Sharing& one) {
    return one.outgoing->released() == one.nbytes || peers_.is_gone(one.peer);
  });
  if (served + shared > 0) changed = true;
  for (const int rank : gone) {
    if (detached_.insert(rank).second) {
      for (const auto& [id, window] : windows_) window->detach(rank);
    }
    if (survival_) {
      if (peers_.is_dropped(rank) && drop(rank)) changed = true;
      continue;
    }
    if (abandon(rank)) changed = true;
    if (fail_gone(rank)) changed = true;
  }
  return changed;
}

void WindowService::close(Code code, const std::string& why) {
  closed_ = {code, why, rank_};
  // The others may go on without this rank, so it changes nothing of theirs any more.
  if (survival_) {
    for (const auto& [id, window] : windows_) window->detach_all();
  }
  while (!parts_.empty()) {
    const auto& [number, part] = *parts_.begin();
    end_part(number, {code, part.request->label() + ": " + why, rank_});
  }
}

void WindowService::free() {
  for (const auto& [id, window] : windows_) window->detach_all();
  early_.clear();
  arrivals_.clear();
  servings_.clear();
  sharings_.clear();
  windows_.clear();
  release_removed();
  // Their memory stays until the process ends, because nobody will ask again.
  for (const WindowPtr& window : removed_) static_cast<void>(new WindowPtr(window));
  removed_.clear();
}

}  // namespace bluecomm
