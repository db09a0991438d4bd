#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "net/gate.h"
#include "net/keeper.h"
#include "net/recv_comm.h"

namespace bluecomm::net {

// What listen() returns: a gate, and the receivers that are being made at it. Any
// number may be accepted.
class ListenComm {
 public:
  ListenComm(const Device& device, const Settings& settings);
  ListenComm(const ListenComm&) = delete;
  ListenComm& operator=(const ListenComm&) = delete;
  ~ListenComm() { gate_->close(); }

  const Handle& handle() const { return gate_->handle(); }

  // The next receiver whose sender is there; null: none yet.
  KeptPtr<RecvComm> accept();

 private:
  const std::shared_ptr<Gate> gate_;
  std::mutex mutex_;
  std::list<KeptPtr<RecvComm>> opening_;  // under mutex_
};

}  // namespace bluecomm::net
