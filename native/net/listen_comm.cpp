#include "net/listen_comm.h"

#include <utility>

namespace bluecomm::net {

ListenComm::ListenComm(const Device& device, const Settings& settings)
    : gate_(make_kept<Gate>(device, settings)) {}

KeptPtr<RecvComm> ListenComm::accept() {
  const std::scoped_lock lock(mutex_);
  gate_->advance();
  for (stream::Admitted& newcomer : gate_->take_newcomers()) {
    opening_.push_back(make_kept<RecvComm>(gate_, std::move(newcomer)));
  }
  for (auto one = opening_.begin(); one != opening_.end();) {
    const auto current = one++;
    // A sender that gave up is its own affair; others are waited for.
    bool open = false;
    bool useless = false;
    try {
      open = (*current)->advance_opening();
      useless = !open && (*current)->is_abandoned();
    } catch (const Failure&) {
      useless = true;
    }
    if (!open && !useless) continue;
    KeptPtr<RecvComm> taken = std::move(*current);
    opening_.erase(current);
    if (open) return taken;
  }
  return nullptr;
}

}  // namespace bluecomm::net
