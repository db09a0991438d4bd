#include "bindings/transports.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <span>
#include <stdexcept>
#include <string_view>
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
  tcp.encryption = stream::parse_encryption(options.encryption);
  tcp.silence_timeout = tcp.connect_timeout =
      std::chrono::milliseconds(std::llround(options.link_timeout_s * 1000));
  tcp.eager_bytes = options.eager_bytes;
  tcp.limits = options.limits;
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
  // Ranks sleep between polls. An eager message waits for one such sleep; a larger one,
  // which the receiver must request first, waits for three.
  made.eager_bytes = std::max(options.eager_bytes, mpi::kMaxEager);
  return std::make_unique<MpiTransport>(std::move(made));
}

// If the probe fails, this rank offers no shared memory, so it and its peers use
// another transport in both directions.
bool shm_works(const TransportOptions& options) {
  return probe_shm(options.socket_dir, options.rank).empty();
}

bool has_mpi(const TransportOptions& options) { return options.mpi != nullptr; }

bool always(const TransportOptions&) { return true; }

struct TransportKind {
  std::string_view name;
  bool (*is_in_auto)(const TransportOptions& options);  // whether "auto" selects it
  std::unique_ptr<Transport> (*make)(const TransportOptions& options);
};

// In order of preference: a rank uses the first transport that reaches a peer.
constexpr std::array kTransports = {
    TransportKind{"shm", &shm_works, &make_shm},
    TransportKind{"mpi", &has_mpi, &make_mpi},
    TransportKind{"tcp", &always, &make_tcp},
};

}  // namespace

std::vector<std::string> transport_names() {
  std::vector<std::string> names;
  for (const TransportKind& kind : kTransports) names.emplace_back(kind.name);
  return names;
}

std::vector<std::unique_ptr<Transport>> make_transports(
    const std::string& choice, const TransportOptions& options) {
  std::vector<std::unique_ptr<Transport>> transports;
  bool is_known = choice == "auto";
  for (const TransportKind& kind : kTransports) {
    is_known |= choice == kind.name;
    const bool selected =
        choice == kind.name || (choice == "auto" && kind.is_in_auto(options));
    if (selected) transports.push_back(kind.make(options));
  }
  if (is_known) return transports;
  std::string text = "transport must be one of auto";
  for (const TransportKind& kind : kTransports) text.append(" ").append(kind.name);
  throw std::invalid_argument(text + "; got '" + choice + "'");
}

}  // namespace bluecomm::bindings
