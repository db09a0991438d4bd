#pragma once

#include <chrono>
#include <string>

namespace bluecomm::nccl_net {

// The values of BLUECOMM_NET_*. The two ends of a connection may differ in all but the
// key.
struct Settings {
  // BLUECOMM_NET_STREAMS: the number of TCP connections from a sender to its receiver,
  // 1 to 16, or 0 for "auto".
  int streams = 0;
  // BLUECOMM_NET_TIMEOUT_S: how long a peer may be silent, or unreachable while a
  // connection is opened, before the call fails.
  std::chrono::milliseconds timeout{30'000};
  // BLUECOMM_NET_KEY: a secret text that both ends know. If empty, whoever knows the
  // handle, which NCCL carries to the peer, may connect.
  std::string key;
  // BLUECOMM_NET_CHECKSUM: whether this end sends a CRC32C with all data.
  bool checksum = false;
  // BLUECOMM_NET_THREADS: the number of I/O threads, 0 to 16, or -1 for "auto".
  int threads = -1;
};

// Reads the settings from `environment`, which is like `environ`. Throws
// std::invalid_argument if a variable is unknown or its value is invalid.
Settings read_settings(const char* const* environment);

}  // namespace bluecomm::nccl_net
