#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/shared_memory.h"

namespace bluecomm {

struct ShmOptions {
  int rank = 0;
  std::string job;
  std::uint64_t epoch = 0;
  std::string machine;  // as Peer::machine; only peers with the same one are reached
  std::vector<std::byte> secret;  // of the job; keys the handshake
  // A directory of the user, which must exist, where ranks of this machine find each
  // other's sockets.
  std::string socket_dir;
  // Payloads up to this size travel with their header; at most kMaxShmEager.
  std::size_t eager_bytes = 4096;
  // Memory for copies of payloads that do not lie in `memory`. An accepted message
  // gets one chunk even when this is used up.
  std::size_t staging_bytes = std::size_t{8} << 20;
  // Peers read payloads that lie in this memory in place.
  std::shared_ptr<SharedMemory> memory;
  // How long a connection may take to prove that it belongs to the job.
  std::chrono::milliseconds handshake_timeout{5000};
  // How long a peer may refuse this rank's connections before it counts as
  // unreachable.
  std::chrono::milliseconds refused_timeout{5000};
};

inline constexpr std::size_t kMaxShmEager = 16 << 10;

}  // namespace bluecomm
