#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stream/stats.h"

namespace bluecomm::nccl_net {

// The traffic of one connection.
struct ConnectionStats {
  std::uint64_t number = 0;  // in order of opening, from 1
  std::string direction;     // "send" or "recv"
  stream::LinkStats link;
};

// Formats counters as JSON.
std::string format_counters(const std::vector<ConnectionStats>& connections);

}  // namespace bluecomm::nccl_net
