// Bytes that are damaged in transit without TCP noticing, with and without checksums.
#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "tests/check.h"
#include "tests/nccl_net/connections.h"
#include "tests/nccl_net/proxy.h"

namespace bluecomm::test {
namespace {

namespace abi = nccl_net::abi;

constexpr std::size_t kShort = 1000;         // sent eagerly
constexpr std::size_t kLong = 300'000;       // sent in chunks
constexpr std::size_t kGranted = 5'000'000;  // waits for a frame from the receiver

// Enables or disables checksums for the data that this rank sends.
void use_checksums(bool on) { setenv("BLUECOMM_NET_CHECKSUM", on ? "1" : "0", 1); }

// Rank 0 sends to rank 1 through a proxy.
class Pair {
 public:
  explicit Pair(const TestRank& rank) : rank_(rank), client_(start_client(11)) {}

  void open() {
    HandleBytes handle{};
    void* listen_comm = nullptr;
    if (sends()) {
      rank_.receive_bytes(handle.data(), handle.size());
      proxy_.emplace(redirect(handle));
      std::memcpy(handle.data() + kAddress, &proxy_->address(), sizeof(sockaddr_in));
    } else {
      REQUIRE(client_->listen(0, handle, &listen_comm) == abi::kSuccess);
      rank_.send_bytes(handle.data(), handle.size());
    }
    spin_until("connect and accept", [&] {
      const int result = sends() ? client_->connect(0, handle, &comm_)
                                 : client_->accept(listen_comm, &comm_);
      REQUIRE(result == abi::kSuccess);
      return comm_ != nullptr;
    });
    if (!sends()) CHECK_EQ(client_->close_listen(listen_comm), abi::kSuccess);
    rank_.barrier();
  }

  void close() {
    rank_.barrier();
    CHECK_EQ(sends() ? client_->close_send(comm_) : client_->close_recv(comm_),
             abi::kSuccess);
    comm_ = nullptr;
    proxy_.reset();
  }

  bool sends() const { return rank_.number() == 0; }
  Proxy& proxy() { return *proxy_; }

  // Returns the result of a message. The connection may have failed before.
  int move(std::span<std::byte> memory) {
    void* request = nullptr;
    int result = try_post(memory, &request);
    if (result != abi::kSuccess) return result;
    spin_until("the request to complete", [&] {
      int done = 0;
      result = client_->test(request, &done, nullptr);
      return result != abi::kSuccess || done != 0;
    });
    return result;
  }
  // Returns the result of a call after the connection has failed.
  int end() {
    std::byte byte{};
    int result = abi::kSuccess;
    spin_until("the end of the connection", [&] {
      void* request = nullptr;
      result = try_post({&byte, 1}, &request);
      return result != abi::kSuccess;
    });
    return result;
  }

 private:
  // In a handle, the listener's address follows the magic, the connect id and the name.
  static constexpr std::size_t kAddress = 32;

  static sockaddr_in redirect(const HandleBytes& handle) {
    sockaddr_in address;
    std::memcpy(&address, handle.data() + kAddress, sizeof address);
    return address;
  }

  int try_post(std::span<std::byte> memory, void** request) {
    return sends() ? client_->isend(comm_, memory, 0, request)
                   : client_->irecv(comm_, memory, 0, request);
  }

  const TestRank& rank_;
  std::unique_ptr<PluginClient> client_;
  std::optional<Proxy> proxy_;
  void* comm_ = nullptr;
};

// The sender's setting decides; the receiver's makes no difference.
TEST(nccl_net_damage, a_damaged_message_is_an_error_at_both_ends) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    use_checksums(rank.number() == 0);
    Pair pair(rank);
    for (const std::size_t nbytes : {kShort, kLong}) {
      // The checksum, the frame and the message's head take 56 bytes.
      for (const std::size_t position : {0ul, 1ul, 3ul, 5ul, 12ul, 16ul, 21ul, 24ul,
                                         30ul, 50ul, 60ul, 100ul, nbytes / 2, nbytes}) {
        pair.open();
        std::vector<std::byte> memory(nbytes, std::byte{7});
        if (pair.sends()) {
          // Turns a kChecksum frame into another frame without payload.
          pair.proxy().damage(Proxy::kToTarget, position, std::byte{4});
          // The kernel may have taken all of a short message by then.
          pair.move(memory);
          CHECK_EQ(pair.end(), abi::kRemoteError);
        } else {
          CHECK_EQ(pair.move(memory), abi::kRemoteError);
        }
        pair.close();
      }
    }
  });
}

TEST(nccl_net_damage, a_damaged_control_frame_is_an_error_at_both_ends) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    use_checksums(true);
    Pair pair(rank);
    for (const std::uint64_t position : {0, 17, 24, 32, 40}) {
      pair.open();
      std::vector<std::byte> memory(kGranted);
      // After the first checksum every frame has one.
      CHECK_EQ(pair.move(memory), abi::kSuccess);
      rank.barrier();
      if (pair.sends()) {
        pair.proxy().damage(Proxy::kFromTarget, position, std::byte{4});
      }
      rank.barrier();
      CHECK_EQ(pair.move(memory), abi::kRemoteError);
      pair.close();
    }
  });
}

// The receiver's setting applies to the data that it sends itself, and requires nothing
// of the sender.
TEST(nccl_net_damage, damage_goes_unnoticed_without_the_senders_checksums) {
  run_ranks_in_both_modes(kLongTimeout, [](TestRank& rank) {
    use_checksums(rank.number() == 1);
    Pair pair(rank);
    for (const std::size_t nbytes : {kShort, kLong}) {
      pair.open();
      std::vector<std::byte> memory(nbytes, std::byte{7});
      if (pair.sends()) {
        pair.proxy().damage(Proxy::kToTarget, nbytes / 2, std::byte{4});
      }
      CHECK_EQ(pair.move(memory), abi::kSuccess);
      const auto right = std::count(memory.begin(), memory.end(), std::byte{7});
      CHECK_EQ(static_cast<std::size_t>(right), pair.sends() ? nbytes : nbytes - 1);
      pair.close();
    }
  });
}

TEST(nccl_net_damage, the_ends_may_have_different_settings) {
  run_ranks(kLongTimeout, [](TestRank& rank) {
    const bool first = rank.number() == 0;
    use_checksums(first);
    setenv("BLUECOMM_NET_STREAMS", first ? "4" : "1", 1);
    setenv("BLUECOMM_NET_THREADS", first ? "0" : "2", 1);
    setenv("BLUECOMM_NET_TIMEOUT_S", first ? "300" : "600", 1);
    const auto client = start_client(12);
    const auto pairs = open_comm_pairs(*client, rank, 2);
    run_traffic(*client, rank, pairs, 60);
    for (const CommPair& one : pairs) close_comm_pair(*client, one);
  });
}

}  // namespace
}  // namespace bluecomm::test
