#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "transport/channel.h"
#include "transport/inproc/wire.h"

namespace bluecomm::inproc {

// A message that has arrived: shared by the inbox, which copies its payload, and the
// Incoming, which shows it.
class Reception;

// The messages from one peer.
class Inbox {
 public:
  explicit Inbox(std::shared_ptr<Hub> hub);
  ~Inbox();

  // Returns the Incoming of a message whose header has arrived.
  std::unique_ptr<Incoming> take(std::shared_ptr<InprocMessage> message);

  // Copies the next chunk of each accepted message. Returns true if it copied any.
  bool poll();
  // Whether poll() would copy a chunk. The caller holds the hub's mutex.
  bool can_copy() const;

  std::size_t messages() const { return messages_; }
  std::size_t nbytes() const { return nbytes_; }

 private:
  const std::shared_ptr<Hub> hub_;
  std::vector<std::shared_ptr<Reception>> receptions_;
  std::size_t messages_ = 0;
  std::size_t nbytes_ = 0;
};

}  // namespace bluecomm::inproc
