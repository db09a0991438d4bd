#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bluecomm::stream {

// Counters of one connection. Bytes are those of the wire, frames included.
struct StreamStats {
  std::string peer;  // its address
  std::uint64_t bytes_sent = 0;
  std::uint64_t chunks_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t chunks_received = 0;
};

// Counters of one direction of a link. Bytes are those of payloads.
struct MessageStats {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

struct LinkStats {
  MessageStats sent;
  MessageStats received;
  std::vector<StreamStats> streams;  // in the order in which they were opened
};

}  // namespace bluecomm::stream
