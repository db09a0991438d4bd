#pragma once

#include <list>
#include <memory>

#include "nccl_net/acceptor.h"
#include "nccl_net/housekeeper.h"
#include "nccl_net/recv_comm.h"

namespace bluecomm::nccl_net {

// What listen() returns: a acceptor, and the receivers that are being made at it. Any
// number may be accepted. Those that nobody has accepted yet are maintained here, so
// that their senders hear that this process lives.
class ListenComm final : public Maintained {
 public:
  ListenComm(const Device& device, const Settings& settings);
  ~ListenComm() override { acceptor_->close(); }

  const ListenHandle& handle() const { return acceptor_->handle(); }

  // The next receiver whose sender is there; null: none yet. Takes the mutex.
  MaintainedPtr<RecvComm> accept();

  void maintain(Clock::time_point now) override;
  void abandon() noexcept override;

 private:
  std::unique_ptr<RecvComm> take_open();

  const std::shared_ptr<Acceptor> acceptor_;
  std::list<std::unique_ptr<RecvComm>> opening_;
};

}  // namespace bluecomm::nccl_net
