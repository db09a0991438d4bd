#pragma once

#include <cstdint>

namespace bluecomm {

// What the operations of one kind have exchanged with one peer, and how long they could
// not go on without it. `late_s` is the part of `wait_s` in which the peer had not
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

// The operations of one kind.
struct KindStats {
  std::uint64_t calls = 0;  // that have ended, the failed ones included
  std::uint64_t failures = 0;
  double duration_s = 0;  // from call to end, added up
  double blocked_s = 0;   // in which the program waited for their end
};

}  // namespace bluecomm
