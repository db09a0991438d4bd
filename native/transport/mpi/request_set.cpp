#include "transport/mpi/request_set.h"

#include <utility>

namespace bluecomm::mpi {

RequestSet::Id RequestSet::take_slot() {
  if (free_.empty()) {
    slots_.emplace_back();
    return slots_.size() - 1;
  }
  const Id id = free_.back();
  free_.pop_back();
  return id;
}

RequestSet::Id RequestSet::add(RequestHandle request) {
  const Id id = take_slot();
  slots_[id].at = under_way_.size();
  under_way_.push_back(request);
  owners_.push_back(id);
  return id;
}

RequestSet::Id RequestSet::add_completed(const Completion& done) {
  const Id id = take_slot();
  slots_[id].done = done;
  return id;
}

std::optional<Completion> RequestSet::take(Id id) {
  std::optional<Completion> done = std::exchange(slots_[id].done, std::nullopt);
  if (done) free_.push_back(id);
  return done;
}

std::optional<RequestHandle> RequestSet::release(Id id) {
  if (take(id)) return std::nullopt;
  const std::size_t at = slots_[id].at;
  const RequestHandle request = under_way_[at];
  owners_[at].reset();
  remove_unowned();
  free_.push_back(id);
  return request;
}

bool RequestSet::poll() {
  if (under_way_.empty()) return false;
  ended_.clear();
  mpi_.test_some(under_way_, ended_);
  if (ended_.empty()) return false;
  for (const IndexedCompletion& one : ended_) {
    slots_[*owners_[one.index]].done = one.done;
    owners_[one.index].reset();
  }
  remove_unowned();
  return true;
}

void RequestSet::remove_unowned() {
  std::size_t kept = 0;
  for (std::size_t at = 0; at < under_way_.size(); ++at) {
    if (!owners_[at]) continue;
    slots_[*owners_[at]].at = kept;
    under_way_[kept] = under_way_[at];
    owners_[kept++] = owners_[at];
  }
  under_way_.resize(kept);
  owners_.resize(kept);
}

}  // namespace bluecomm::mpi
