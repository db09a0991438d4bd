#pragma once

#include <chrono>
#include <string>

namespace bluecomm::nccl_net {

// What BLUECOMM_NET_* says. The two ends of a connection may differ in all but the key.
struct Settings {
  // BLUECOMM_NET_STREAMS: TCP connections of each sender to its receiver, "auto" (0) or
  // 1 to 16.
  int streams = 0;
  // BLUECOMM_NET_TIMEOUT_S: how long a peer may be silent, or out of reach when a
  // connection is made, before that is an error.
  std::chrono::milliseconds timeout{30'000};
  // BLUECOMM_NET_KEY: a secret that both ends know, any text. Empty: only the handle,
  // which NCCL carries to the peer, admits.
  std::string key;
  // BLUECOMM_NET_CHECKSUM: 1 to send CRC32Cs with all that is sent.
  bool checksum = false;
  // BLUECOMM_NET_THREADS: that move bytes beside those of NCCL, 0 to 16, or "auto"
  // (-1).
  int threads = -1;
};

// `environment`: as `environ`. Throws std::invalid_argument if a variable is unknown or
// its value is of no use.
Settings read_settings(const char* const* environment);

}  // namespace bluecomm::nccl_net
