#include "request/request_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/never_free.h"

namespace bluecomm {

void RequestTable::add(RequestPtr request) {
  active_.push_back(request);
  if (next_deadline_) next_deadline_ = std::min(*next_deadline_, request->deadline());
  const RequestId id = request->id();
  requests_.emplace(id, std::move(request));
}

const RequestTable::RequestPtr& RequestTable::at(RequestId id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    throw std::invalid_argument("request " + std::to_string(id) +
                                " is unknown: it was released, or never started");
  }
  return found->second;
}

void RequestTable::end(const BaseRequest& request) {
  ++completions_;
  const auto active =
      std::find_if(active_.begin(), active_.end(),
                   [&](const RequestPtr& one) { return one.get() == &request; });
  if (next_deadline_ && request.deadline() <= *next_deadline_) next_deadline_.reset();
  if (request.holds_memory()) {
    held_.push_back(std::move(*active));
  } else {
    finished_.push_back(request.id());
  }
  active_.erase(active);
  if (request.watched) completion_queue_.push(request.id());
}

bool RequestTable::watch(RequestId id) {
  BaseRequest& request = *at(id);
  if (request.done()) return false;
  request.watched = true;
  return true;
}

bool RequestTable::release(RequestId id) {
  const RequestPtr& request = at(id);
  if (!request->done()) {
    throw std::invalid_argument("request " + std::to_string(id) +
                                " cannot be released before it has ended");
  }
  const bool is_free =
      std::none_of(held_.begin(), held_.end(),
                   [&](const RequestPtr& one) { return one.get() == request.get(); });
  requests_.erase(id);
  const auto listed = std::find(finished_.rbegin(), finished_.rend(), id);
  if (listed != finished_.rend()) finished_.erase(std::next(listed).base());
  return is_free;
}

std::vector<RequestId> RequestTable::take_finished() {
  return std::exchange(finished_, {});
}

std::vector<RequestId> RequestTable::held() const {
  std::vector<RequestId> ids;
  ids.reserve(held_.size());
  for (const RequestPtr& request : held_) ids.push_back(request->id());
  return ids;
}

void RequestTable::check_held() {
  std::erase_if(held_, [&](const RequestPtr& request) {
    if (request->holds_memory()) return false;
    finished_.push_back(request->id());
    return true;
  });
}

void RequestTable::extend_deadline(RequestId id, Clock::duration time) {
  BaseRequest& request = *at(id);
  next_deadline_.reset();
  request.set_deadline(std::max(request.deadline(), Clock::now() + time));
}

void RequestTable::put_off_deadlines(Clock::duration time) {
  next_deadline_.reset();
  for (const RequestPtr& request : active_) {
    request->set_deadline(request->deadline() + time);
  }
}

Clock::time_point RequestTable::next_deadline() const {
  if (!next_deadline_) {
    Clock::time_point next = Clock::time_point::max();
    for (const RequestPtr& request : active_) {
      next = std::min(next, request->deadline());
    }
    next_deadline_ = next;
  }
  return *next_deadline_;
}

std::vector<RequestTable::RequestPtr> RequestTable::expired(
    Clock::time_point now) const {
  std::vector<RequestPtr> expired;
  if (now < next_deadline()) return expired;
  for (const RequestPtr& request : active_) {
    if (request->deadline() <= now) expired.push_back(request);
  }
  return expired;
}

void RequestTable::never_free_held() const {
  for (const RequestPtr& request : held_) never_free(request);
}

}  // namespace bluecomm
