#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/shared_memory.h"
#include "mpi/session.h"
#include "transport/channel.h"
#include "transport/tcp/options.h"

namespace bluecomm::bindings {

// The options of all transports. Each transport uses those that it needs.
struct TransportOptions {
  int rank = 0;
  std::string job;
  std::uint32_t epoch = 0;
  std::string machine;     // as Peer::machine
  std::string secret;      // of the job; keys the handshakes
  std::string socket_dir;  // where ranks of this machine find each other's sockets
  std::vector<std::string> addresses;  // to listen on, in order of preference
  int tcp_streams = 0;                 // as stream::Options
  std::string encryption = "off";      // of links over TCP: off, auth or full
  double link_timeout_s = 30;          // of links over TCP
  // Of links over TCP; not null.
  std::shared_ptr<const stream::SendingLimits> limits =
      std::make_shared<stream::SendingLimits>();
  std::size_t eager_bytes = 4096;
  std::size_t staging_bytes = std::size_t{8} << 20;  // as ShmOptions
  std::shared_ptr<SharedMemory> memory;
  std::shared_ptr<mpi::Session> mpi;  // null if there is no MPI to use
};

// Names of all transports, in order of preference.
std::vector<std::string> transport_names();

// Makes the transports that `choice` selects, in order of preference, and opens their
// listeners: "auto" selects every transport that works here, a name only that one.
// Throws std::invalid_argument for any other choice, and for "mpi" without a session.
std::vector<std::unique_ptr<Transport>> make_transports(
    const std::string& choice, const TransportOptions& options);

}  // namespace bluecomm::bindings
