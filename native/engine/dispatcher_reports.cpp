// Reports about requests and peers, for the program and the monitor.
#include <algorithm>
#include <set>
#include <utility>

#include "engine/dispatcher.h"

namespace bluecomm {
std::string_view request_kind_name(RequestKind kind) {
  return is_operation(kind) ? kind_name(static_cast<Kind>(kind))
                            : window_call_name(kind);
}

std::vector<PendingRequest> Dispatcher::pending() const {
  std::vector<PendingRequest> list;
  const Clock::time_point now = Clock::now();
  for (const auto& request : requests_.active()) {
    PendingRequest& one = list.emplace_back();
    one.id = request->id();
    one.kind = request->kind_name();
    one.name = request->name();
    one.age_s = std::chrono::duration<double>(now - request->started()).count();
    std::set<int> waiting_for;
    if (is_operation(request->kind())) {
      const Operation::Unfinished unfinished =
          static_cast<const Operation&>(*request).unfinished();
      waiting_for.insert(unfinished.not_taken.begin(), unfinished.not_taken.end());
      for (const Missing& missing : unfinished.missing)
        waiting_for.insert(missing.peer);
      one.received_bytes = unfinished.received;
      one.expected_bytes = unfinished.expected;
    } else {
      WindowService::Awaited awaited =
          windows_.awaited(static_cast<const WindowRequest&>(*request));
      waiting_for = std::move(awaited.ranks);
      one.wish = std::move(awaited.wish);
    }
    one.waiting_for.assign(waiting_for.begin(), waiting_for.end());
  }
  return list;
}

Stats Dispatcher::stats() const {
  Stats stats;
  stats.age_s = stats_.age().count();
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
  for (std::size_t rank = 0; rank < counted_before_.size(); ++rank) {
    const Channel* const channel = peers_.channels()[rank];
    if (channel != nullptr) counted_before_[rank] = channel->stats();
  }
}

}  // namespace bluecomm
