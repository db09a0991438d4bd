// A listener limits the connections whose dialers have not proved the key.
#include "stream/listener.h"

#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <vector>

#include "stream/socket.h"
#include "tests/check.h"

namespace bluecomm::stream {
namespace {

constexpr std::size_t kLimit = 4;

Options make_options() {
  Options options;
  options.key.assign(32, std::byte{7});
  options.addresses = {"127.0.0.1"};
  options.max_half_open = kLimit;
  return options;
}

Hello short_hello(int from, int to) {
  Hello hello;
  hello.from = from;
  hello.to = to;
  return hello;
}

// Connects to `listener` over loopback and sends `bytes`.
UniqueFd connect_and_send(const Listener& listener, std::span<const std::byte> bytes) {
  const Address& to = listener.addresses().front();
  UniqueFd fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  REQUIRE(connect(fd.get(), to.data(), to.size()) == 0);
  REQUIRE(send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
          static_cast<ssize_t>(bytes.size()));
  return fd;
}

std::size_t count_answered(const std::vector<UniqueFd>& connections) {
  return static_cast<std::size_t>(
      std::count_if(connections.begin(), connections.end(), [](const UniqueFd& one) {
        std::byte byte{};
        return recv(one.get(), &byte, 1, MSG_DONTWAIT | MSG_PEEK) == 1;
      }));
}

TEST(stream_listener, replayed_hellos_take_slots_like_strangers) {
  Poller poller;
  const Options options = make_options();
  Listener listener(poller, options, short_hello(1, 1));
  // A recorded hello, with a valid MAC.
  const Handshake recorded = Handshake::dial(options.key, short_hello(0, 1));
  std::vector<UniqueFd> replays;
  while (replays.size() < 3 * kLimit) {
    replays.push_back(connect_and_send(listener, recorded.output()));
  }
  // Loopback delivers at once, and the clock of the listener is given.
  const Clock::time_point start = Clock::now();
  std::vector<AcceptedConnection> admitted;
  const auto advance = [&](Clock::time_point now) {
    for (int k = 0; k < 20; ++k) {
      poller.collect();
      listener.advance(now, admitted);
    }
  };
  advance(start);
  CHECK_EQ(count_answered(replays), kLimit);
  CHECK_EQ(listener.rejected(), 0u);
  CHECK(listener.next_timer() == start + std::chrono::milliseconds(500));
  // The oldest ones make room for others, and none is admitted.
  advance(start + std::chrono::milliseconds(500));
  CHECK_EQ(listener.rejected(), kLimit);
  CHECK_EQ(count_answered(replays), 2 * kLimit);
  CHECK(admitted.empty());
}

}  // namespace
}  // namespace bluecomm::stream
