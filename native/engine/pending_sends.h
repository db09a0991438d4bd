#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/envelope.h"
#include "engine/plan.h"
#include "transport/channel.h"

namespace bluecomm {

// The messages that the running phase of an operation sends, and lingering messages of
// earlier phases. The destructor cancels messages that peers have not taken yet.
class PendingSends {
 public:
  // Starts all `sends`, which must outlive this object. `call` is their envelope
  // without the fields of single messages; `lease` is the lease of the memory that they
  // read.
  void start(std::span<const Send> sends, Envelope call, std::uint32_t phase,
             std::span<Channel* const> channels, Lease& lease);

  // Returns whether peers have finished reading all messages.
  bool released();

  // Returns whether peers have finished reading all messages except lingering ones.
  bool phase_released();

  // Returns whether peers have finished reading `range`.
  bool released(std::span<const std::byte> range) const;

  // Appends the peers that are still reading.
  void collect_readers(std::vector<int>& peers) const;

 private:
  struct Message {
    const Send* send;
    std::unique_ptr<Outgoing> outgoing;
    bool released() const { return outgoing->released() == send->bytes.size(); }
  };

  void forget_released();

  std::vector<Message> messages_;  // not released at the last check
};

}  // namespace bluecomm
