#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/shared_memory.h"
#include "mpi/session.h"
#include "transport/channel.h"

namespace bluecomm::bindings {

struct TransportOptions {
  int rank = 0;
  std::string job;
  std::uint32_t epoch = 0;
  std::string machine;  // as Peer::machine
  std::string secret;
  std::string socket_dir;
  std::vector<std::string> addresses;
  int tcp_streams = 0;  // as stream::Options
  std::size_t eager_bytes = 4096;
  std::size_t staging_bytes = std::size_t{8} << 20;
  std::shared_ptr<SharedMemory> memory;
  std::shared_ptr<mpi::Session> mpi;  // null: no transport over MPI
};

// The transports that `choice` ("auto", "shm", "tcp", "mpi") names, the preferred one
// first. Opens their listeners. Throws std::invalid_argument for another choice, and
// for "mpi" without a session.
std::vector<std::unique_ptr<Transport>> make_transports(
    const std::string& choice, const TransportOptions& options);

}  // namespace bluecomm::bindings
