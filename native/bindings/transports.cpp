#include "bindings/transports.h"

#include <algorithm>
#include <span>
#include <stdexcept>
#include <utility>

#include "transport/mpi/transport.h"
#include "transport/shm/probe.h"
#include "transport/shm/transport.h"
#include "transport/tcp/transport.h"

namespace bluecomm::bindings {
namespace {

std::vector<std::byte> to_key(const std::string& secret) {
  const auto bytes = std::as_bytes(std::span(secret));
  return {bytes.begin(), bytes.end()};
}

std::unique_ptr<Transport> make_tcp(const TransportOptions& options) {
  TcpOptions tcp;
  tcp.rank = options.rank;
  tcp.job = options.job;
  tcp.epoch = options.epoch;
  tcp.key = to_key(options.secret);
  tcp.addresses = options.addresses;
  tcp.streams = options.tcp_streams;
  tcp.eager_bytes = options.eager_bytes;
  return std::make_unique<TcpTransport>(std::move(tcp));
}

std::unique_ptr<Transport> make_shm(const TransportOptions& options) {
  ShmOptions shm;
  shm.rank = options.rank;
  shm.job = options.job;
  shm.epoch = options.epoch;
  shm.machine = options.machine;
  shm.secret = to_key(options.secret);
  shm.socket_dir = options.socket_dir;
  shm.eager_bytes = std::min(options.eager_bytes, kMaxShmEager);
  shm.staging_bytes = options.staging_bytes;
  shm.memory = options.memory;
  return make_shm_transport(shm);
}

std::unique_ptr<Transport> make_mpi(const TransportOptions& options) {
  MpiOptions made;
  made.rank = options.rank;
  made.session = options.mpi;
  // Each message that must be asked for waits for three naps, not one.
  made.eager_bytes = std::max(options.eager_bytes, mpi::kMaxEager);
  return std::make_unique<MpiTransport>(std::move(made));
}

}  // namespace

std::vector<std::unique_ptr<Transport>> make_transports(
    const std::string& choice, const TransportOptions& options) {
  if (choice != "auto" && choice != "shm" && choice != "tcp" && choice != "mpi") {
    throw std::invalid_argument("transport must be one of auto shm tcp mpi; got '" +
                                choice + "'");
  }
  std::vector<std::unique_ptr<Transport>> transports;
  // A rank that offers no shared memory is reached over tcp by all, and reaches them
  // so.
  const bool use_shm =
      choice == "shm" ||
      (choice == "auto" && probe_shm(options.socket_dir, options.rank).empty());
  if (use_shm) transports.push_back(make_shm(options));
  const bool use_mpi = choice == "mpi" || (choice == "auto" && options.mpi);
  if (use_mpi) transports.push_back(make_mpi(options));
  if (choice == "auto" || choice == "tcp") transports.push_back(make_tcp(options));
  return transports;
}

}  // namespace bluecomm::bindings
