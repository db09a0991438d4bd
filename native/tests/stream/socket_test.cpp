#include "stream/socket.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <string>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using namespace std::chrono_literals;

int option_of(const UniqueFd& fd, int option) {
  int value = -1;
  socklen_t length = sizeof value;
  REQUIRE(getsockopt(fd.get(), IPPROTO_TCP, option, &value, &length) == 0);
  return value;
}

TEST(stream_socket, a_connection_sends_at_once_and_probes_a_silent_peer) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  prepare_stream(fd.get(), 20s);
  CHECK_EQ(option_of(fd, TCP_NODELAY), 1);
  // A lost idle peer leaves several probes unanswered within the timeout, but the
  // kernel does not end the connection: that is for is_silent().
  CHECK(option_of(fd, TCP_KEEPIDLE) + 4 * option_of(fd, TCP_KEEPINTVL) <= 20);
  CHECK(option_of(fd, TCP_KEEPCNT) * option_of(fd, TCP_KEEPINTVL) > 4 * 20);
  CHECK(option_of(fd, TCP_USER_TIMEOUT) > 3'600'000);
}

TEST(stream_socket, a_connection_retransmits_every_second) {
  constexpr int kTcpRtoMaxMs = 44;
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  prepare_stream(fd.get(), 20s);
  int value = -1;
  socklen_t length = sizeof value;
  if (getsockopt(fd.get(), IPPROTO_TCP, kTcpRtoMaxMs, &value, &length) == 0) {
    CHECK_EQ(value, 1000);
  } else {
    CHECK_EQ(errno, ENOPROTOOPT);  // Linux before 6.15
  }
}

TEST(stream_socket, unsent_bytes_can_be_limited) {
  const UniqueFd fd(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const int unlimited = option_of(fd, TCP_NOTSENT_LOWAT);
  limit_unsent(fd.get(), true);
  CHECK_EQ(option_of(fd, TCP_NOTSENT_LOWAT), 128 << 10);
  limit_unsent(fd.get(), false);
  CHECK_EQ(option_of(fd, TCP_NOTSENT_LOWAT), unlimited);
}

TEST(stream_socket, connections_within_the_machine_are_not_paced) {
  const UniqueFd listener = listen_on(Address("127.0.0.1", 0));
  UniqueFd fd;
  REQUIRE(start_connecting(local_address(listener.get()), fd) == 0);
  std::array<char, 16> name{};
  socklen_t length = name.size();
  REQUIRE(getsockopt(fd.get(), IPPROTO_TCP, TCP_CONGESTION, name.data(), &length) == 0);
  CHECK_EQ(std::string(name.data()), "reno");
}

}  // namespace
}  // namespace bluecomm::stream
