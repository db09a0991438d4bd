#pragma once

#include <list>
#include <memory>

#include "nccl_net/gate.h"
#include "nccl_net/keeper.h"
#include "nccl_net/recv_comm.h"

namespace bluecomm::nccl_net {

// What listen() returns: a gate, and the receivers that are being made at it. Any
// number may be accepted. Those that nobody has accepted yet are kept here, so that
// their senders hear that this process lives.
class ListenComm final : public Kept {
 public:
  ListenComm(const Device& device, const Settings& settings);
  ~ListenComm() override { gate_->close(); }

  const Handle& handle() const { return gate_->handle(); }

  // The next receiver whose sender is there; null: none yet. Takes the mutex.
  KeptPtr<RecvComm> accept();

  void keep(Clock::time_point now) override;
  void abandon() noexcept override;

 private:
  std::unique_ptr<RecvComm> take_open();

  const std::shared_ptr<Gate> gate_;
  std::list<std::unique_ptr<RecvComm>> opening_;
};

}  // namespace bluecomm::nccl_net
