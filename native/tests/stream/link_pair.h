#pragma once

#include <sys/socket.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <vector>

#include "stream/link.h"
#include "tests/check.h"

namespace bluecomm::stream {

inline constexpr std::array<std::byte, 8> kHead{};
inline constexpr std::size_t kMiB = 1 << 20;

inline std::vector<std::byte> pattern(std::size_t nbytes) {
  std::vector<std::byte> bytes(nbytes);
  for (std::size_t i = 0; i < nbytes; ++i) bytes[i] = std::byte(i * 7 + i / 997);
  return bytes;
}

// Two links over socket pairs with small buffers, so that a stalled stream fills at
// once.
class LinkPair {
 public:
  explicit LinkPair(std::size_t streams, bool checksum = false,
                    Encryption encryption = Encryption::kOff,
                    const OutboxSettings& settings = {})
      : encryption(encryption),
        sender(kHead.size(), settings, std::make_shared<SegmentPool>(), checksum) {
    for (std::size_t i = 0; i < streams; ++i) join();
  }

  void join() {
    int pair[2];
    REQUIRE(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    const int room = 128 << 10;
    setsockopt(pair[0], SOL_SOCKET, SO_SNDBUF, &room, sizeof room);
    sender.add({UniqueFd(pair[0]), cipher(1, 2)}, false);
    receiver.add({UniqueFd(pair[1]), cipher(2, 1)}, false);
  }
  std::unique_ptr<RecordCipher> cipher(int send, int receive) const {
    if (encryption == Encryption::kOff) return nullptr;
    const StreamKeys keys{Digest{std::byte(send)}, Digest{std::byte(receive)}};
    return std::make_unique<RecordCipher>(encryption, keys);
  }

  // Gives both links a turn. The receiver does not read stream `stalled`.
  void turn() {
    for (Stream& stream : sender.streams()) stream.readable = stream.writable = true;
    for (std::size_t i = 0; i < receiver.streams().size(); ++i) {
      receiver.streams()[i].readable = i != stalled;
      receiver.streams()[i].writable = true;
    }
    sender.progress();
    receiver.progress();
    while (auto message = receiver.take_arrived())
      arrived.push_back(std::move(message));
  }
  bool turn_until(const std::function<bool()>& done) {
    for (int i = 0; i < 10'000 && !done(); ++i) turn();
    return done();
  }

  const Encryption encryption;
  Link sender;
  Link receiver{kHead.size(), {}, std::make_shared<SegmentPool>()};
  std::size_t stalled = SIZE_MAX;
  std::vector<std::unique_ptr<ReceivedMessage>> arrived;
};

// A message of the sender, and the buffer that the receiver accepts it into.
struct Transfer {
  Transfer(LinkPair& pair, std::size_t nbytes) : data(pattern(nbytes)), into(nbytes) {
    const std::size_t before = pair.arrived.size();
    pair.sender.send(message, kHead, data);
    REQUIRE(pair.turn_until([&] { return pair.arrived.size() > before; }));
    received = std::move(pair.arrived.back());
    received->accept(into);
  }
  std::size_t readable() const { return received->readable().size(); }
  bool done() const { return readable() == into.size(); }

  std::vector<std::byte> data;
  std::vector<std::byte> into;
  SentMessage message;
  std::unique_ptr<ReceivedMessage> received;
};

}  // namespace bluecomm::stream
