#pragma once

#include <cstdint>

namespace bluecomm {

// Totals of one kind of operation with one peer: the traffic, and how long operations
// waited for the peer. `late_s` is the part of `wait_s` in which the peer had not
// called the operation yet.
struct EdgeStats {
  std::uint64_t messages_sent = 0;
  std::uint64_t bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t bytes_received = 0;
  double wait_s = 0;
  double late_s = 0;

  bool operator==(const EdgeStats&) const = default;
};

// Totals of one kind of operation.
struct KindStats {
  std::uint64_t calls = 0;  // finished, including failed ones
  std::uint64_t failures = 0;
  double duration_s = 0;  // sum of the times from call to end
  double blocked_s = 0;   // time that the program spent waiting for their end
};

}  // namespace bluecomm
