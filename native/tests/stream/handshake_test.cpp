#include "stream/handshake.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "tests/check.h"

namespace bluecomm::stream {
namespace {

using Bytes = std::vector<std::byte>;

const Bytes kKey(32, std::byte{7});

Hello hello_of(int from, int to) {
  Hello hello;
  hello.from = from;
  hello.to = to;
  hello.stream = 1;
  hello.epoch = 3;
  hello.nonce[0] = std::byte{4};
  return hello;
}

Handshake dialer() { return Handshake::dial(kKey, hello_of(5, 6)); }

Handshake acceptor(int nonce = 9) {
  return Handshake::accept(kKey, hello_of(6, 6), Nonce{std::byte(nonce)});
}

void feed(Handshake& handshake, Bytes bytes, std::size_t piece = SIZE_MAX) {
  std::size_t fed = 0;
  while (fed < bytes.size() && !handshake.space().empty()) {
    const auto space = handshake.space();
    const std::size_t count = std::min({space.size(), bytes.size() - fed, piece});
    std::copy_n(bytes.begin() + static_cast<long>(fed), count, space.begin());
    handshake.received(count);
    fed += count;
  }
}

Bytes take_output(Handshake& handshake) {
  const auto output = handshake.output();
  Bytes bytes(output.begin(), output.end());
  handshake.sent(bytes.size());
  return bytes;
}

TEST(stream_handshake, both_ends_agree_however_the_bytes_are_cut) {
  for (const std::size_t piece : {1, 7, 95, 1000}) {
    Handshake ours = dialer();
    Handshake theirs = acceptor();
    CHECK(theirs.output().empty());
    feed(theirs, take_output(ours), piece);
    CHECK(theirs.greeted());
    feed(ours, take_output(theirs), piece);
    CHECK(ours.greeted());
    CHECK(theirs.state() == Handshake::State::kRunning);
    feed(theirs, take_output(ours), piece);
    CHECK(ours.state() == Handshake::State::kDone);
    CHECK(theirs.state() == Handshake::State::kDone);
    CHECK_EQ(theirs.hello().from, 5);
    CHECK_EQ(theirs.hello().stream, 1u);
    CHECK(theirs.space().empty());
  }
}

// Seals a byte as the dialer, and returns whether the acceptor can open it.
bool opens(RecordCipher& ours, RecordCipher& theirs) {
  const Bytes byte{std::byte{1}};
  const std::array parts{std::span<const std::byte>(byte)};
  Bytes sealed(1 + kTagNbytes);
  ours.sealer.seal(parts, sealed.data());
  return theirs.opener.open(std::span(sealed).first(1), std::span(sealed).last(16));
}

TEST(stream_handshake, each_connection_has_its_own_keys_for_both_directions) {
  const auto connect = [](int nonce) {
    Hello hello = hello_of(5, 6);
    hello.encryption = Encryption::kFull;
    Hello me = hello_of(6, 6);
    me.encryption = Encryption::kFull;
    Handshake ours = Handshake::dial(kKey, hello);
    Handshake theirs = Handshake::accept(kKey, me, Nonce{std::byte(nonce)});
    feed(theirs, take_output(ours));
    feed(ours, take_output(theirs));
    feed(theirs, take_output(ours));
    CHECK(theirs.state() == Handshake::State::kDone);
    return std::pair(ours.make_cipher(), theirs.make_cipher());
  };
  const auto [ours, theirs] = connect(1);
  CHECK(opens(*ours, *theirs));
  CHECK(opens(*theirs, *ours));
  const auto [other_ours, other_theirs] = connect(2);
  CHECK(!opens(*ours, *other_theirs));
  CHECK(!opens(*other_theirs, *theirs));
  Handshake plain = dialer();
  CHECK(plain.make_cipher() == nullptr);
}

TEST(stream_handshake, a_replayed_exchange_fails) {
  Handshake ours = dialer();
  Handshake theirs = acceptor(1);
  const Bytes hello = take_output(ours);
  feed(theirs, hello);
  const Bytes reply = take_output(theirs);
  feed(ours, reply);
  const Bytes proof = take_output(ours);

  Handshake again = acceptor(2);
  feed(again, hello);
  CHECK(again.greeted());
  feed(again, proof);
  CHECK(again.state() == Handshake::State::kFailed);

  Hello other = hello_of(5, 6);
  other.nonce[0] = std::byte{5};
  Handshake redial = Handshake::dial(kKey, other);
  feed(redial, reply);
  CHECK(redial.state() == Handshake::State::kFailed);
  CHECK(!redial.greeted());
}

TEST(stream_handshake, an_end_does_not_accept_its_own_messages) {
  Handshake ours = dialer();
  feed(ours, take_output(ours));
  CHECK(ours.state() == Handshake::State::kFailed);
  Handshake theirs = acceptor();
  Handshake other = dialer();
  feed(theirs, take_output(other));
  feed(theirs, take_output(theirs));
  CHECK(theirs.state() == Handshake::State::kFailed);
}

TEST(stream_handshake, any_changed_bit_fails) {
  Handshake sample = dialer();
  const Bytes hello = take_output(sample);
  for (std::size_t bit = 0; bit < hello.size() * 8; ++bit) {
    Bytes changed = hello;
    changed[bit / 8] ^= std::byte(1 << bit % 8);
    Handshake theirs = acceptor();
    feed(theirs, changed);
    CHECK(theirs.state() == Handshake::State::kFailed);
    CHECK(theirs.output().empty());
  }
}

TEST(stream_handshake, a_stranger_is_recognized_by_the_first_bytes) {
  Handshake theirs = acceptor();
  feed(theirs, Bytes{std::byte{'G'}});
  CHECK(theirs.state() == Handshake::State::kFailed);
}

}  // namespace
}  // namespace bluecomm::stream
