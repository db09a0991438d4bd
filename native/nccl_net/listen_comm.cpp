#include "nccl_net/listen_comm.h"

#include <algorithm>
#include <utility>

namespace bluecomm::nccl_net {

ListenComm::ListenComm(const Device& device, const Settings& settings)
    : acceptor_(make_maintained<Acceptor>(device, settings)) {}

MaintainedPtr<RecvComm> ListenComm::accept() {
  std::unique_ptr<RecvComm> open;
  {
    const LockGuard lock(mutex);
    maintain(Clock::now());
    open = take_open();
  }
  if (!open) return nullptr;
  Housekeeper::get().add(*open);
  return MaintainedPtr<RecvComm>(open.release());
}

void ListenComm::maintain(Clock::time_point) {
  acceptor_->advance();
  for (stream::AcceptedConnection& newcomer : acceptor_->take_newcomers()) {
    opening_.push_back(std::make_unique<RecvComm>(acceptor_, std::move(newcomer)));
  }
  // Drops the comm of a sender that has given up. Its own process reports that.
  std::erase_if(opening_, [](const auto& one) { return !one->advance_opening(); });
}

// Returns a comm that has opened, even if its sender has disconnected since: the sender
// may have sent data before.
std::unique_ptr<RecvComm> ListenComm::take_open() {
  const auto found = std::find_if(opening_.begin(), opening_.end(),
                                  [](const auto& one) { return one->is_open(); });
  if (found == opening_.end()) return nullptr;
  std::unique_ptr<RecvComm> taken = std::move(*found);
  opening_.erase(found);
  return taken;
}

void ListenComm::abandon() noexcept NO_THREAD_SAFETY_ANALYSIS {
  for (const auto& one : opening_) one->abandon();
}

}  // namespace bluecomm::nccl_net
