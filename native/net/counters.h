#pragma once

#include <string>
#include <utility>
#include <vector>

#include "stream/stats.h"

namespace bluecomm::net {

// JSON of connections, each with its direction, "send" or "recv".
std::string format_counters(
    const std::vector<std::pair<std::string, stream::LinkStats>>& connections);

}  // namespace bluecomm::net
