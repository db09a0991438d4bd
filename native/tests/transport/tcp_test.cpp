#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/tcp_support.h"
#include "transport/tcp/transport.h"

namespace bluecomm::test {
namespace {

Scheme one_stream() { return tcp_scheme(); }

Scheme four_streams() {
  return tcp_scheme([](TcpOptions& options) { options.streams = 4; });
}

Scheme authenticated() {
  return tcp_scheme([](TcpOptions& options) {
    options.encryption = stream::Encryption::kAuth;
    options.streams = 2;
  });
}

Scheme encrypted() {
  return tcp_scheme(
      [](TcpOptions& options) { options.encryption = stream::Encryption::kFull; });
}

Scheme ipv6() {
  return tcp_scheme([](TcpOptions& options) { options.addresses = {"::1"}; });
}

const bool tcp_registered = register_conformance<&one_stream>("tcp");
const bool registered_four = register_conformance<&four_streams>("tcp_four_streams");
const bool registered_auth = register_conformance<&authenticated>("tcp_authenticated");
const bool registered_full = register_conformance<&encrypted>("tcp_encrypted");

TcpTransport make(const Adjust& adjust) {
  TcpOptions options = tcp_options(0);
  adjust(options);
  return TcpTransport(options);
}

}  // namespace

TEST(tcp_options, refuses_invalid_options) {
  CHECK_THROWS(make([](TcpOptions& options) { options.key.clear(); }),
               std::invalid_argument, "expected the job's key, got an empty one");
  CHECK_THROWS(make([](TcpOptions& options) { options.streams = 17; }),
               std::invalid_argument, "expected 0 (auto) to 16 streams, got 17");
  CHECK_THROWS(make([](TcpOptions& options) { options.addresses = {"host1"}; }),
               std::invalid_argument, "expected a numeric IP address: 'host1'");
  CHECK_THROWS(make([](TcpOptions& options) { options.addresses = {}; }),
               std::runtime_error, "none was given");
  CHECK_THROWS(make([](TcpOptions& options) { options.addresses = {"192.0.2.1"}; }),
               std::runtime_error, "bind to 192.0.2.1:0");
  TcpTransport transport(tcp_options(0));
  CHECK_THROWS(transport.channel(1, "nowhere"), std::invalid_argument, "'nowhere'");
}

TEST(tcp_options, offers_only_addresses_that_it_listens_on) {
  const auto offer = [](const Adjust& adjust) { return make(adjust).offer(); };
  CHECK(offer([](TcpOptions&) {}).starts_with("127.0.0.1:"));
  const std::string two = offer([](TcpOptions& options) {
    options.addresses = {"192.0.2.1", "127.0.0.1", "::1"};
  });
  CHECK(two.starts_with("127.0.0.1:"));
  CHECK(two.find(",[::1]:") != std::string::npos);
  const std::string all = offer([](TcpOptions& options) {
    options.addresses = {"192.0.2.1", "127.0.0.1"};
    options.listen_everywhere = true;
  });
  CHECK(all.starts_with("192.0.2.1:"));
}

TEST(tcp, speaks_ipv6) {
  Findings findings;
  Ranks ranks(ipv6(), 2, findings);
  const Sending sending = ranks[0].send(1, 1, 1 << 20);
  if (Reader* reader = ranks.await(1, 1)) ranks.read_all(*reader);
  CHECK_EQ(findings.size(), 0u);
}

}  // namespace bluecomm::test
