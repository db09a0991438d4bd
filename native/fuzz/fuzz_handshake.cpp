// A stranger sends any bytes during the handshake.
#include <cstring>
#include <vector>

#include "fuzz/fuzz.h"
#include "stream/handshake.h"

namespace {

using namespace bluecomm;
using stream::Handshake;

const std::vector<std::byte> kKey(32, std::byte{7});

stream::Hello hello() {
  stream::Hello hello;
  hello.from = 1;
  hello.to = 0;
  return hello;
}

// Passes the bytes to `handshake` in pieces; returns how many it took.
void feed(Handshake& handshake, std::span<const std::byte> bytes, std::size_t piece) {
  while (!bytes.empty() && !handshake.space().empty()) {
    const auto space = handshake.space();
    const std::size_t count = std::min({bytes.size(), space.size(), piece});
    std::memcpy(space.data(), bytes.data(), count);
    handshake.received(count);
    bytes = bytes.subspan(count);
  }
}

void move_output(Handshake& from, Handshake& to, std::size_t piece) {
  const auto output = from.output();
  feed(to, output, piece);
  from.sent(output.size());
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  const std::uint8_t mode = input.byte();
  const std::size_t piece = 1 + input.byte();
  const stream::Nonce nonce{std::byte{1}};
  stream::Hello me;
  Handshake acceptor = Handshake::accept(kKey, me, nonce);
  Handshake dialer = Handshake::dial(kKey, hello());
  // The genuine messages before the stranger's: none, a hello, or a hello and a reply.
  if (mode % 3 >= 1) move_output(dialer, acceptor, piece);
  if (mode % 3 == 2) move_output(acceptor, dialer, piece);

  const auto bytes = input.take(size);
  feed(acceptor, bytes, piece);
  feed(dialer, bytes, piece);
  // No input can guess the key. (The corpus must not hold a genuine exchange.)
  MUST(acceptor.state() != Handshake::State::kDone);
  if (mode % 3 == 2) {
    MUST(dialer.greeted());
  } else {
    MUST(!dialer.greeted());
  }
  return 0;
}
