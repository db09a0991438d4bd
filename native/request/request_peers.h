#pragma once

#include <optional>
#include <string>

#include "request/base_request.h"
#include "transport/channel.h"

namespace bluecomm {

// The other ranks, as the services see them that answer requests without a plan.
class RequestPeers {
 public:
  virtual ~RequestPeers() = default;

  // Returns null if the rank is lost.
  virtual Channel* channel(int rank) const = 0;
  virtual bool is_gone(int rank) const = 0;
  // Returns whether requests go on without the rank, in a job that survives losses.
  virtual bool is_dropped(int rank) const = 0;
  // Returns the reason, once it is certain that no message from the rank will arrive.
  // The last messages of a rank that has said goodbye may still be in its transport for
  // some time after `since`, which is the start of a request or time_point::min().
  virtual std::optional<std::string> why_gone(int rank,
                                              Clock::time_point since) const = 0;
  // Returns a text such as "rank 1 (hostB)".
  virtual std::string describe_rank(int rank) const = 0;
};

}  // namespace bluecomm
