#pragma once

#include <vector>

#include "nccl_net/handle.h"
#include "nccl_net/keeper.h"
#include "stream/listener.h"
#include "stream/poller.h"

namespace bluecomm::nccl_net {

// Where senders arrive: the listening socket of one listen(), and those who have shown
// that they know its name. Lives as long as a receiver that came through it, for
// further streams come the same way.
class Gate final : public Kept {
 public:
  Gate(const Device& device, const Settings& settings);

  const Handle& handle() const { return handle_; }
  const Identity& identity() const { return identity_; }
  // Readable when advance() would do something.
  int fd() const { return poller_.fd(); }

  // All of these take the mutex.
  void advance();
  std::vector<stream::Admitted> take_newcomers();
  std::vector<stream::Admitted> take_streams(const stream::Nonce& group);
  // Nobody new is let in from now on.
  void close();

  void keep(Clock::time_point now) override;
  void abandon() noexcept override;

 private:
  Gate(const stream::Nonce& name, const Device& device, const Settings& settings);

  Identity identity_;
  stream::Poller poller_;
  stream::Listener listener_;
  Handle handle_;
  bool closed_ = false;
  std::vector<stream::Admitted> newcomers_;
  std::vector<stream::Admitted> streams_;  // further ones, of any receiver
};

}  // namespace bluecomm::nccl_net
