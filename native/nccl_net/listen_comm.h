#pragma once

#include <list>
#include <memory>

#include "nccl_net/acceptor.h"
#include "nccl_net/housekeeper.h"
#include "nccl_net/recv_comm.h"

namespace bluecomm::nccl_net {

// NCCL's listen comm: an acceptor and the recv comms that are opening. accept() may be
// called any number of times. Until it returns a recv comm, the housekeeper sends
// heartbeats for that comm, so that its sender does not time out.
class ListenComm final : public Maintained {
 public:
  ListenComm(const Device& device, const Settings& settings);
  ~ListenComm() override { acceptor_->close(); }

  const ListenHandle& handle() const { return acceptor_->handle(); }

  // Returns the next recv comm whose sender has connected, or null if there is none
  // yet.
  MaintainedPtr<RecvComm> accept() EXCLUDES(mutex);

  void maintain(Clock::time_point now) override REQUIRES(mutex);
  void abandon() noexcept override;

 private:
  std::unique_ptr<RecvComm> take_open() REQUIRES(mutex);

  const std::shared_ptr<Acceptor> acceptor_;
  std::list<std::unique_ptr<RecvComm>> opening_ GUARDED_BY(mutex);
};

}  // namespace bluecomm::nccl_net
