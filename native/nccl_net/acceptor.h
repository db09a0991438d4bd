#pragma once

#include <vector>

#include "nccl_net/housekeeper.h"
#include "nccl_net/listen_handle.h"
#include "stream/listener.h"
#include "stream/poller.h"

namespace bluecomm::nccl_net {

// The listening socket of one listen comm, and the authenticated connections that no
// recv comm has taken yet. The acceptor outlives its listen comm while a recv comm that
// came through it exists, because further streams of that comm arrive here too.
class Acceptor final : public Maintained {
 public:
  Acceptor(const Device& device, const Settings& settings);

  const ListenHandle& handle() const { return handle_; }
  const Identity& identity() const { return identity_; }
  // Readable when advance() would do something.
  int fd() const { return poller_.fd(); }

  // Accepts connections and continues their handshakes.
  void advance() EXCLUDES(mutex);
  // Takes the first streams of new senders.
  std::vector<stream::AcceptedConnection> take_newcomers() EXCLUDES(mutex);
  // Takes further streams of the recv comm whose link is `group`.
  std::vector<stream::AcceptedConnection> take_streams(const stream::Nonce& group)
      EXCLUDES(mutex);
  // Refuses new senders from now on.
  void close() EXCLUDES(mutex);

  void maintain(Clock::time_point now) override REQUIRES(mutex);
  void abandon() noexcept override;

 private:
  Acceptor(const stream::Nonce& name, const Device& device, const Settings& settings);

  Identity identity_;
  stream::Poller poller_;
  stream::Listener listener_ GUARDED_BY(mutex);
  ListenHandle handle_;
  bool closed_ GUARDED_BY(mutex) = false;
  std::vector<stream::AcceptedConnection> newcomers_ GUARDED_BY(mutex);
  // Further streams, of any recv comm.
  std::vector<stream::AcceptedConnection> streams_ GUARDED_BY(mutex);
};

}  // namespace bluecomm::nccl_net
