#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace bluecomm::stream {

// Counters of one stream. Bytes are those on the wire, frames included.
struct StreamStats {
  std::string peer;  // address
  std::uint64_t bytes_sent = 0;
  std::uint64_t chunks_sent = 0;
  std::uint64_t bytes_received = 0;
  std::uint64_t chunks_received = 0;
};

// Counters of one direction of a link. Bytes are payload bytes.
struct MessageStats {
  std::uint64_t messages = 0;
  std::uint64_t bytes = 0;
};

struct LinkStats {
  MessageStats sent;
  MessageStats received;
  std::vector<StreamStats> streams;  // in order of opening
};

}  // namespace bluecomm::stream
