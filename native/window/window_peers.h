#pragma once

#include <optional>
#include <string>

#include "transport/channel.h"

namespace bluecomm {

// The other ranks, as WindowService sees them.
class WindowPeers {
 public:
  virtual ~WindowPeers() = default;

  // Returns null if the rank is lost.
  virtual Channel* channel(int rank) const = 0;
  virtual bool is_gone(int rank) const = 0;
  // Returns the reason, once it is certain that no message from the rank will arrive.
  virtual std::optional<std::string> why_gone(int rank) const = 0;
  // Returns a text such as "rank 1 (hostB)".
  virtual std::string describe_rank(int rank) const = 0;
};

}  // namespace bluecomm
