#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <vector>

#include "engine/envelope.h"
#include "engine/plan.h"
#include "transport/channel.h"

namespace bluecomm {

// The messages that one phase sends. Destroying it cancels those not taken yet.
class Sends {
 public:
  // Starts all of `sends`, which outlives this object. `call` is their envelope but for
  // the parts of each message.
  Sends(std::span<const Send> sends, Envelope call, std::uint32_t phase,
        std::span<Channel* const> channels);

  // No peer reads any of the memory any more.
  bool released();

  // No peer reads `range` any more.
  bool released(std::span<const std::byte> range) const;

  // Peers that still read.
  void collect_readers(std::vector<int>& peers) const;

 private:
  std::span<const Send> sends_;
  std::vector<std::unique_ptr<Outgoing>> messages_;
  std::size_t finished_ = 0;  // the first so many are released
};

}  // namespace bluecomm
