#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace bluecomm::stream {

using Clock = std::chrono::steady_clock;

// Of a link at most; so many are also opened when the link is left to find out itself.
inline constexpr int kMaxStreams = 16;
inline constexpr int kMaxAutoStreams = 8;

class StreamCount;

struct Options {
  int rank = 0;
  std::string job;
  std::uint64_t epoch = 0;
  std::vector<std::byte> key;          // the job's secret; not empty
  std::vector<std::string> addresses;  // numeric, own, in order of preference
  // Listen on the wildcard addresses and only offer those above.
  bool listen_everywhere = false;
  // Of the links that this end dials, 1 to kMaxStreams; 0: as many as pay: see
  // stream_count.h.
  int streams = 0;
  // For 0: what links that go the same way have in common; null: nothing.
  std::shared_ptr<StreamCount> count;
  std::size_t eager_bytes = 4096;
  // What this end sends goes with CRC32Cs.
  bool checksum = false;

  // How long a connection may take to show that it belongs to the job.
  std::chrono::milliseconds handshake_timeout{5000};
  // How long a peer may be out of reach before its link is lost ...
  std::chrono::milliseconds connect_timeout{20000};
  // ... and how long it may refuse connections.
  std::chrono::milliseconds refused_timeout{2000};
  // Between the starts of attempts at a peer's several addresses.
  std::chrono::milliseconds stagger{100};
  // A peer's kernel that acknowledges nothing for so long is cut off. A stopped process
  // is not: its kernel goes on answering.
  std::chrono::milliseconds silence_timeout{20000};
  // Connections that have not yet shown the key.
  std::size_t max_half_open = 64;
};

}  // namespace bluecomm::stream
