#pragma once

#include <vector>

#include "nccl_net/housekeeper.h"
#include "nccl_net/listen_handle.h"
#include "stream/listener.h"
#include "stream/poller.h"

namespace bluecomm::nccl_net {

// Where senders arrive: the listening socket of one listen(), and those who have shown
// that they know its name. Lives as long as a receiver that came through it, for
// further streams come the same way.
class Acceptor final : public Maintained {
 public:
  Acceptor(const Device& device, const Settings& settings);

  const ListenHandle& handle() const { return handle_; }
  const Identity& identity() const { return identity_; }
  // Readable when advance() would do something.
  int fd() const { return poller_.fd(); }

  // All of these take the mutex.
  void advance();
  std::vector<stream::AcceptedConnection> take_newcomers();
  std::vector<stream::AcceptedConnection> take_streams(const stream::Nonce& group);
  // Nobody new is let in from now on.
  void close();

  void maintain(Clock::time_point now) override;
  void abandon() noexcept override;

 private:
  Acceptor(const stream::Nonce& name, const Device& device, const Settings& settings);

  Identity identity_;
  stream::Poller poller_;
  stream::Listener listener_;
  ListenHandle handle_;
  bool closed_ = false;
  std::vector<stream::AcceptedConnection> newcomers_;
  std::vector<stream::AcceptedConnection> streams_;  // further ones, of any receiver
};

}  // namespace bluecomm::nccl_net
