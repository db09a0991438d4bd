// What a dispatcher tells of its operations and peers.
#include <algorithm>
#include <utility>

#include "engine/dispatcher.h"

namespace bluecomm {
namespace {

// Calls about windows are numbered from here on among what is pending: by themselves
// they are numbered as operations are.
constexpr RequestId kFirstWindowCall = RequestId{1} << 63;

}  // namespace

std::vector<PendingOperation> Dispatcher::pending() const {
  std::vector<PendingOperation> list;
  const Clock::time_point now = Clock::now();
  for (const auto& operation : active_) {
    PendingOperation one;
    one.id = operation->id();
    one.kind = kind_name(operation->request().kind);
    one.name = operation->request().name;
    one.age_s = std::chrono::duration<double>(now - operation->started()).count();
    Operation::Unfinished unfinished = operation->unfinished();
    one.waiting_for = std::move(unfinished.not_taken);
    for (const Missing& missing : unfinished.missing)
      one.waiting_for.push_back(missing.peer);
    std::sort(one.waiting_for.begin(), one.waiting_for.end());
    one.waiting_for.erase(std::unique(one.waiting_for.begin(), one.waiting_for.end()),
                          one.waiting_for.end());
    one.received_bytes = unfinished.received;
    one.expected_bytes = unfinished.expected;
    list.push_back(std::move(one));
  }
  for (WindowService::Pending& call : windows_.pending()) {
    PendingOperation one;
    one.id = kFirstWindowCall + call.call.number;
    one.is_window_call = true;
    one.kind = call_name(call.call.kind);
    one.name = std::move(call.call.window);
    one.age_s = std::chrono::duration<double>(now - call.call.began).count();
    one.waiting_for.assign(call.waiting_for.begin(), call.waiting_for.end());
    one.wish = std::move(call.wish);
    list.push_back(std::move(one));
  }
  return list;
}

Stats Dispatcher::stats() const {
  Stats stats;
  stats.age_s = account_.age().count();
  stats.window_calls = window_account_.kinds();
  for (std::size_t k = 0; k < kKindCount; ++k) {
    const Kind kind = static_cast<Kind>(k);
    const KindStats counted = account_.kind(kind);
    if (counted.calls > 0) stats.kinds.emplace_back(kind, counted);
  }
  for (int rank = 0; rank < config_.size; ++rank) {
    const auto index = static_cast<std::size_t>(rank);
    const Channel* const channel = peers_.channels()[index];
    if (channel == nullptr) continue;
    PeerStats peer{rank,
                   std::string(peers_.transport_of(rank)),
                   channel->stats() - counted_before_[index],
                   {},
                   window_account_.edges(rank)};
    const Account::Edges* const edges = account_.edges(rank);
    for (std::size_t k = 0; edges != nullptr && k < kKindCount; ++k) {
      const EdgeStats& edge = (*edges)[k];
      if (edge == EdgeStats{}) continue;
      peer.edges.emplace_back(static_cast<Kind>(k), edge);
    }
    stats.peers.push_back(std::move(peer));
  }
  return stats;
}

void Dispatcher::reset_stats() {
  account_.reset();
  window_account_.reset();
  for (std::size_t rank = 0; rank < counted_before_.size(); ++rank) {
    const Channel* const channel = peers_.channels()[rank];
    if (channel != nullptr) counted_before_[rank] = channel->stats();
  }
}

}  // namespace bluecomm
