#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"
#include "transport/tcp/tcp_transport.h"

namespace bluecomm::test {
namespace {

TcpOptions options_of(int rank, int streams) {
  TcpOptions options;
  options.rank = rank;
  options.job = "tests";
  options.epoch = 1;
  options.key.assign(32, std::byte{7});
  options.addresses = {"127.0.0.1"};
  options.streams = streams;
  return options;
}

World make_world(int size, int streams) {
  World world;
  for (int rank = 0; rank < size; ++rank) {
    world.transports.push_back(
        std::make_unique<TcpTransport>(options_of(rank, streams)));
  }
  connect(world);
  return world;
}

Scheme one_stream() {
  return {[](int size) { return make_world(size, 1); }, TcpOptions{}.eager_bytes};
}

Scheme four_streams() {
  return {[](int size) { return make_world(size, 4); }, TcpOptions{}.eager_bytes};
}

const bool registered = register_conformance<&one_stream>("tcp");
const bool registered_four = register_conformance<&four_streams>("tcp_four_streams");

}  // namespace
}  // namespace bluecomm::test
