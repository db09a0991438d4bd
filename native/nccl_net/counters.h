#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "stream/stats.h"

namespace bluecomm::nccl_net {

// What a connection has carried.
struct ConnectionStats {
  std::uint64_t number = 0;  // in the order in which they were opened, from 1
  std::string direction;     // "send" or "recv"
  stream::LinkStats link;
};

// JSON.
std::string format_counters(const std::vector<ConnectionStats>& connections);

}  // namespace bluecomm::nccl_net
