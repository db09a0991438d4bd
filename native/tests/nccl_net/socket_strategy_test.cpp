// Tests the reimplementation of NCCL's socket transport that the benchmark compares
// with.
#include "tests/nccl_net/socket_strategy.h"

#include <sys/socket.h>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"

namespace bluecomm::test {
namespace {

struct Ends {
  std::vector<UniqueFd> sender;
  std::vector<UniqueFd> receiver;
};

Ends make_ends(int count) {
  Ends ends;
  for (int k = 0; k < count; ++k) {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) == 0);
    ends.sender.emplace_back(pair[0]);
    ends.receiver.emplace_back(pair[1]);
  }
  return ends;
}

std::unique_ptr<SocketStrategy> make(bool sends, std::vector<UniqueFd> fds,
                                     int threads) {
  UniqueFd control = std::move(fds.front());
  fds.erase(fds.begin());
  return std::make_unique<SocketStrategy>(sends, std::move(control), std::move(fds),
                                          threads);
}

TEST(nccl_net_socket_strategy, every_byte_arrives_with_and_without_data_sockets) {
  for (const int sockets : {0, 1, 4}) {
    const int threads = std::min(sockets, 2);
    Ends ends = make_ends(1 + sockets);
    const auto sender = make(true, std::move(ends.sender), threads);
    const auto receiver = make(false, std::move(ends.receiver), threads);
    MessageSequence sequence(5);
    for (std::uint64_t k = 0; k < 30; ++k) {
      std::vector<std::byte> data(sequence.next_size());
      sequence.fill(k, data);
      std::vector<std::byte> into(data.size() + 100);
      SocketStrategy::SocketRequest* const sent =
          sender->post(data.data(), data.size());
      SocketStrategy::SocketRequest* const got =
          receiver->post(into.data(), into.size());
      REQUIRE(sent != nullptr && got != nullptr);
      bool is_sent = false;
      std::size_t size = 0;
      spin_until("a message", [&] {
        std::size_t ignored = 0;
        is_sent = is_sent || sender->test(*sent, &ignored);
        return receiver->test(*got, &size);
      });
      spin_until("its send", [&] {
        std::size_t ignored = 0;
        return is_sent || (is_sent = sender->test(*sent, &ignored));
      });
      CHECK_EQ(size, data.size());
      CHECK(sequence.matches(k, std::span(into).first(size)));
    }
  }
}

}  // namespace
}  // namespace bluecomm::test
