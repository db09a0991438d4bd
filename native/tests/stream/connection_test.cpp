#include "stream/connection.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <array>

#include "stream/listener.h"
#include "stream/stream_count.h"
#include "tests/check.h"

namespace bluecomm::stream {
namespace {

constexpr std::size_t kHeadNbytes = 8;

Options options_of(int rank) {
  Options options;
  options.rank = rank;
  options.key.assign(32, std::byte{7});
  // Each rank has its own loopback address, as if on its own machine.
  options.addresses = {"127.0.0." + std::to_string(rank + 2)};
  return options;
}

Hello hello_from(int rank) {
  Hello hello;
  hello.from = rank;
  hello.to = 1 - rank;
  return hello;
}

// Rank 1, which accepts the connections of rank 0.
class ByteReceiver {
 public:
  const std::vector<Address>& addresses() const { return listener_.addresses(); }

  void advance() {
    poller_.collect();
    std::vector<AcceptedConnection> admitted;
    listener_.advance(Clock::now(), admitted);
    for (AcceptedConnection& one : admitted) {
      connection_.admit(one.hello, std::move(one.socket), Clock::now());
    }
    connection_.advance(Clock::now());
  }
  void leave() { connection_.forget(); }
  const Link& link() const { return connection_.link(); }

 private:
  Poller poller_;
  const Options options_ = options_of(1);
  Listener listener_{poller_, options_, hello_from(0)};
  Connection connection_{poller_, options_,    hello_from(1), "rank 0",
                         {},      kHeadNbytes, nullptr};
};

// Advances both ends until `done` returns true.
template <typename Done>
void advance_until(Poller& poller, Connection& sender, ByteReceiver& receiver,
                   const Done& done) {
  const auto deadline = Clock::now() + test::kDeadline;
  bool is_done = false;
  while (!is_done && Clock::now() < deadline) {
    poller.collect();
    sender.advance(Clock::now());
    receiver.advance();
    is_done = done();
  }
  REQUIRE(is_done);
}

TEST(stream_connection, a_closed_connection_does_not_affect_the_number_of_streams) {
  ByteReceiver receiver;
  Options options = options_of(0);
  options.count = std::make_shared<StreamCount>(8);
  Poller poller;
  Connection sender(poller, options, hello_from(0), "rank 1", receiver.addresses(),
                    kHeadNbytes, nullptr);
  CHECK_EQ(options.count.use_count(), 1);
  sender.post(std::array<std::byte, kHeadNbytes>{}, {});
  advance_until(poller, sender, receiver, [&] { return sender.is_open(); });
  CHECK_EQ(options.count.use_count(), 2);
  receiver.leave();
  advance_until(poller, sender, receiver,
                [&] { return sender.take_end().has_value(); });
  CHECK_EQ(options.count.use_count(), 1);
}

// TCP_USER_TIMEOUT, which prepare_stream() sets, can be read on every Linux;
// socket_test.cpp reads the option of Linux 6.15 that shortens the pauses.
TEST(stream_connection, both_ends_prepare_their_sockets) {
  ByteReceiver receiver;
  const Options options = options_of(0);
  Poller poller;
  Connection sender(poller, options, hello_from(0), "rank 1", receiver.addresses(),
                    kHeadNbytes, nullptr);
  sender.post(std::array<std::byte, kHeadNbytes>{}, {});
  advance_until(poller, sender, receiver,
                [&] { return sender.is_open() && receiver.link().is_open(); });
  for (const Link* link : {&sender.link(), &receiver.link()}) {
    int value = 0;
    socklen_t length = sizeof value;
    REQUIRE(getsockopt(link->streams()[0].fd(), IPPROTO_TCP, TCP_USER_TIMEOUT, &value,
                       &length) == 0);
    CHECK(value > 3'600'000);
  }
}

}  // namespace
}  // namespace bluecomm::stream
