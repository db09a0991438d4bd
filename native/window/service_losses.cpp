// Ends the parts of lost ranks, and releases what they held. The engine calls these
// functions under its progress lock; docs/survival.md has the states.
//
// By default a part of a lost rank fails, once it is certain that no answer will come.
// In a job that survives losses the part ends without effect as soon as operations go
// on without the rank, and so do all later ones. The next update still uses a
// value that the rank has left as a whole; see Window::update().
#include <algorithm>
#include <iterator>
#include <memory>
#include <utility>

#include "window/service.h"

namespace bluecomm {
namespace {

// Bytes of a payload that are moved at once.
constexpr std::size_t kAtOnce = std::size_t{1} << 20;

}  // namespace

std::vector<RequestId> WindowService::parts_of(int peer) const {
  std::vector<RequestId> numbers;
  for (const auto& [number, part] : parts_) {
    if (part.peer == peer) numbers.push_back(number);
  }
  return numbers;
}

// --- By default ----------------------------------------------------------------------

bool WindowService::fail_gone(int rank) {
  const std::vector<RequestId> lost = parts_of(rank);
  if (lost.empty()) return false;
  const std::optional<std::string> why =
      peers_.why_gone(rank, Clock::time_point::min());
  if (!why) return false;
  for (const RequestId number : lost) {
    const std::string label = parts_.at(number).request->label();
    end_part(number, {Code::kPeerLost, label + ": " + *why, rank});
  }
  return true;
}

// Releases the mutexes of a lost rank and drops its unfinished payloads, once it is
// certain that none of its messages will arrive. Returns whether it did.
bool WindowService::abandon(int rank) {
  if (abandoned_.contains(rank) || !peers_.why_gone(rank, Clock::time_point::min()))
    return false;
  abandoned_.insert(rank);
  forget(rank);
  return true;
}

// Releases the mutexes of a lost rank and drops its unfinished payloads.
void WindowService::forget(int rank) {
  std::erase_if(arrivals_, [&](const auto& one) { return one->peer() == rank; });
  std::erase_if(servings_, [&](const Serving& one) {
    if (one.peer == rank) end_serving(one);
    return one.peer == rank;
  });
  for (const auto& [id, window] : windows_) {
    if (const auto next = window->mutex_queue.leave_all(rank)) grant(*next, *window);
  }
}

// --- In a job that survives losses ---------------------------------------------------

// Goes on without a rank, whose later messages are ignored. Returns whether it did.
//
// The order matters: the next holder of a mutex may rely on what the lost holder has
// left, and on nothing more of it appearing.
bool WindowService::drop(int rank) {
  if (!abandoned_.insert(rank).second) return false;
  finish_arrivals_of(rank);
  for (const auto& [id, window] : windows_) window->retire(rank);
  forget(rank);
  for (const RequestId number : parts_of(rank)) drop_part(number);
  return true;
}

// Takes the payloads of a lost rank that are here as a whole.
void WindowService::finish_arrivals_of(int rank) {
  const auto first =
      std::stable_partition(arrivals_.begin(), arrivals_.end(),
                            [&](const auto& one) { return one->peer() != rank; });
  const std::vector<std::unique_ptr<WindowArrival>> theirs(
      std::make_move_iterator(first), std::make_move_iterator(arrivals_.end()));
  arrivals_.erase(first, arrivals_.end());
  for (const auto& one : theirs) {
    while (one->move(kAtOnce)) {
    }
    if (one->done()) finish_arrival(*one);
  }
}

void WindowService::drop_part(RequestId number) {
  Part& part = parts_.at(number);
  part.is_dropped = true;
  if (part.message.action != WindowAction::kOpen) stats_.dropped();
  end_part(number, {});
}

// --- Memory --------------------------------------------------------------------------

// A rank that has been stopped, for example, writes on when it continues, until it
// learns that it is excluded.
void WindowService::release_removed() {
  if (removed_.empty()) return;
  for (const int rank : detached_) {
    if (!survival_->has_ended(rank)) return;
  }
  removed_.clear();
}

}  // namespace bluecomm
