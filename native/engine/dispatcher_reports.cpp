// Reports about requests and peers, for the program and the monitor.
#include <utility>

#include "engine/dispatcher.h"

namespace bluecomm {

std::string_view request_kind_name(RequestKind kind) {
  if (is_operation(kind)) return kind_name(static_cast<Kind>(kind));
  return is_point(kind) ? point_call_name(kind) : window_call_name(kind);
}

std::vector<PendingRequest> Dispatcher::pending() const {
  std::vector<PendingRequest> list;
  const Clock::time_point now = Clock::now();
  requests_.for_each_active([&](const BaseRequest& request) {
    PendingRequest& one = list.emplace_back();
    one.id = request.id();
    one.kind = request.kind_name();
    one.name = request.name();
    one.group = request.trace_fields().group;
    one.age_s = std::chrono::duration<double>(now - request.started()).count();
    BaseRequest::Awaited awaited = request.awaited();
    one.waiting_for.assign(awaited.ranks.begin(), awaited.ranks.end());
    one.wish = std::move(awaited.wish);
    one.received_bytes = awaited.received_bytes;
    one.expected_bytes = awaited.expected_bytes;
  });
  return list;
}

Stats Dispatcher::stats() const {
  Stats stats;
  stats.age_s = stats_.age().count();
  stats.replaced = replaced_ + stats_.replaced_count();
  stats.dropped = stats_.dropped_count();
  stats.overlapped = stats_.overlapped_count();
  stats.kinds = stats_.kinds();
  for (int rank = 0; rank < config_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const Channel* const channel = peers_.channels()[index];
    if (channel == nullptr) continue;
    stats.peers.push_back({rank, std::string(peers_.transport_of(rank)),
                           channel->stats() - counted_before_[index],
                           stats_.edges(rank)});
  }
  return stats;
}

void Dispatcher::reset_stats() {
  stats_.reset();
  replaced_ = 0;
  for (std::size_t rank = 0; rank < counted_before_.size(); ++rank) {
    const Channel* const channel = peers_.channels()[rank];
    if (channel != nullptr) counted_before_[rank] = channel->stats();
  }
}

}  // namespace bluecomm
