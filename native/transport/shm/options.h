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
  std::string machine;            // as Peer::machine; peers elsewhere are not reached
  std::vector<std::byte> secret;  // of the job
  // Where ranks of this machine find each other's sockets; exists, and is the user's.
  std::string socket_dir;
  // Payloads up to this travel with their header; at most kMaxShmEager.
  std::size_t eager_bytes = 4096;
  // Memory for payloads that are not in `memory` and must be copied for the peers. A
  // message that was accepted gets a chunk even if this is used up.
  std::size_t staging_bytes = std::size_t{8} << 20;
  // Payloads in it are read in place by the peers.
  std::shared_ptr<SharedMemory> memory;
  // How long a connection may take to show that it belongs to the job ...
  std::chrono::milliseconds handshake_timeout{5000};
  // ... and how long a peer may turn this rank's connections away.
  std::chrono::milliseconds refused_timeout{5000};
};

inline constexpr std::size_t kMaxShmEager = 16 << 10;

}  // namespace bluecomm
