#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/envelope.h"
#include "engine/plan.h"
#include "transport/channel.h"

namespace bluecomm {

// The messages that the running phase of an operation sends, and those that linger from
// earlier ones. Destroying it cancels those not taken yet.
class PendingSends {
 public:
  // Starts all of `sends`, which outlives this object. `call` is their envelope but for
  // the parts of each message, `lease` that of the memory they are in.
  void start(std::span<const Send> sends, Envelope call, std::uint32_t phase,
             std::span<Channel* const> channels, Lease& lease);

  // No peer reads any of the memory any more.
  bool released();

  // The same, but for what lingers.
  bool phase_released();

  // No peer reads `range` any more.
  bool released(std::span<const std::byte> range) const;

  // Peers that still read.
  void collect_readers(std::vector<int>& peers) const;

 private:
  struct Message {
    const Send* send;
    std::unique_ptr<Outgoing> outgoing;
    bool released() const { return outgoing->released() == send->bytes.size(); }
  };

  void forget_released();

  std::vector<Message> messages_;  // that were not released when last looked at
};

}  // namespace bluecomm
