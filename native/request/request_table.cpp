#include "request/request_table.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <utility>

#include "common/never_free.h"

namespace bluecomm {

void RequestTable::add(RequestPtr request) {
  BaseRequest& added = *request;
  requests_.emplace(added.id(), std::move(request));
  added.earlier = newest_;
  (newest_ == nullptr ? oldest_ : newest_->later) = &added;
  newest_ = &added;
  next_deadline_ = std::min(next_deadline_, added.deadline());
}

const RequestTable::RequestPtr& RequestTable::at(RequestId id) const {
  const auto found = requests_.find(id);
  if (found == requests_.end()) {
    throw std::invalid_argument("request " + std::to_string(id) +
                                " is unknown: it was released, or never started");
  }
  return found->second;
}

void RequestTable::end(BaseRequest& request) {
  ++completions_;
  (request.earlier == nullptr ? oldest_ : request.earlier->later) = request.later;
  (request.later == nullptr ? newest_ : request.later->earlier) = request.earlier;
  request.earlier = request.later = nullptr;
  if (oldest_ == nullptr) next_deadline_ = Clock::time_point::max();
  if (request.holds_memory()) {
    held_.push_back(at(request.id()));
  } else {
    finished_.push_back(request.id());
  }
  if (request.watched) completion_queue_.push(request.id());
}

bool RequestTable::watch(RequestId id) {
  BaseRequest& request = *at(id);
  if (request.done()) return false;
  if (!std::exchange(request.watched, true)) completion_queue_.expect();
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
  std::erase(read_, id);
  if (!finished_.empty() && finished_.back() == id) {
    finished_.pop_back();
  } else if (finished_.size() > 2 * requests_.size() + kMaxStale) {
    drop_stale();
  }
  return is_free;
}

// Drops the ids of released requests from finished_.
void RequestTable::drop_stale() {
  std::erase_if(finished_, [&](RequestId id) { return !requests_.contains(id); });
}

std::vector<RequestId> RequestTable::take_finished() {
  drop_stale();
  finished_.insert(finished_.end(), read_.begin(), read_.end());
  read_.clear();
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
    read_.push_back(request->id());
    return true;
  });
}

void RequestTable::extend_deadline(RequestId id, Clock::duration time) {
  BaseRequest& request = *at(id);
  request.set_deadline(std::max(request.deadline(), Clock::now() + time));
}

void RequestTable::put_off_deadlines(Clock::duration time) {
  next_deadline_ = Clock::time_point::max();
  for_each_active([&](BaseRequest& request) {
    request.set_deadline(request.deadline() + time);
    next_deadline_ = std::min(next_deadline_, request.deadline());
  });
}

std::vector<RequestTable::RequestPtr> RequestTable::expired(Clock::time_point now) {
  std::vector<RequestPtr> expired;
  if (now < next_deadline_) return expired;
  next_deadline_ = Clock::time_point::max();
  for_each_active([&](const BaseRequest& request) {
    next_deadline_ = std::min(next_deadline_, request.deadline());
    if (request.deadline() <= now) expired.push_back(at(request.id()));
  });
  return expired;
}

void RequestTable::never_free_held() const {
  for (const RequestPtr& request : held_) never_free(request);
}

}  // namespace bluecomm
