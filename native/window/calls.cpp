#include "window/calls.h"

#include <utility>

namespace bluecomm {
namespace {

using Direction = WaitStats::Direction;

// Counts the part of a call that was done in shared memory. Returns true if that was
// the whole call, which has then ended.
bool finish_direct(WaitStats& stats, WindowRequest& request, std::size_t neighbors,
                   std::size_t to_ask) {
  if (to_ask < neighbors) stats.combined(request, request.started());
  if (to_ask > 0) return false;
  request.finish();
  stats.ended(request);
  return true;
}

}  // namespace

RequestId put(WindowHost& host, const std::shared_ptr<Window>& window,
              const WindowPut& call, Clock::time_point deadline, bool blocking,
              RequestId id) {
  WaitStats& stats = host.wait_stats();
  if (id == 0) id = host.next_request_id();
  WindowRequest request(
      id, call.accumulates ? RequestKind::kWinAccumulate : RequestKind::kWinPut, window,
      deadline);
  WindowPut rest{call.x, {}, call.accumulates, call.with_p, 0.0, call.is_sum};
  if (call.with_p) rest.p = window->p();
  const std::size_t nbytes = window->config().value_nbytes();
  for (const int rank : call.summed) {
    stats.exchanged(request, rank, Direction::kSent, nbytes);
  }
  for (const auto& [rank, weight] : call.targets) {
    const Window::DirectPut one{
        call.x, weight, call.accumulates, {weight * rest.p, call.with_p}};
    if (window->put_directly(rank, one)) {
      stats.exchanged(request, rank, Direction::kSent, nbytes);
    } else {
      rest.targets.emplace_back(rank, weight);
    }
  }
  const std::size_t targets = call.targets.size() + call.summed.size();
  if (finish_direct(stats, request, targets, rest.targets.size())) return 0;
  host.start_put(std::make_shared<WindowRequest>(std::move(request)), rest, blocking);
  return id;
}

RequestId get(WindowHost& host, const std::shared_ptr<Window>& window,
              const WindowGet& call, Clock::time_point deadline, bool blocking,
              RequestId id) {
  WaitStats& stats = host.wait_stats();
  if (id == 0) id = host.next_request_id();
  WindowRequest request(id, RequestKind::kWinGet, window, deadline);
  WindowGet rest{{}, call.with_p};
  for (const auto& [rank, weight] : call.sources) {
    if (window->get_directly(rank, weight, call.with_p)) {
      stats.exchanged(request, rank, Direction::kReceived,
                      window->config().value_nbytes());
    } else {
      rest.sources.emplace_back(rank, weight);
    }
  }
  if (finish_direct(stats, request, call.sources.size(), rest.sources.size())) return 0;
  host.start_get(std::make_shared<WindowRequest>(std::move(request)), rest, blocking);
  return id;
}

void update(WindowHost& host, const std::shared_ptr<Window>& window,
            std::span<std::byte> result, std::span<const std::byte> own,
            const Window::Update& update) {
  WaitStats& stats = host.wait_stats();
  WindowRequest request(host.next_request_id(), RequestKind::kWinUpdate, window,
                        Clock::time_point::max());
  stats.replaced(window->update(result, own, update));
  stats.combined(request, request.started());
  request.finish();
  stats.ended(request);
}

}  // namespace bluecomm
