// An attacker between two ranks can end an encrypted link, and nothing else.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "stream/socket.h"
#include "tests/check.h"
#include "tests/transport/tcp_support.h"

namespace bluecomm::test {
namespace {

using Bytes = std::vector<std::byte>;
using stream::Encryption;

// Bytes that the dialer sends in its handshake.
constexpr std::size_t kHandshake = sizeof(stream::Hello) + 2 * sizeof(Digest);
// Records, with their tags.
constexpr std::size_t kFrame = sizeof(stream::Frame) + stream::kTagNbytes;
constexpr std::size_t kShortBytes = 100;
constexpr std::size_t kMessage =
    kFrame + sizeof(Header) + kShortBytes + stream::kTagNbytes;

// A program on the path between the dialer and `target`. It collects `held` bytes that
// the dialer sends after its handshake, changes them by `attack`, and passes them on.
// From then on it passes on everything.
class Meddler {
 public:
  using Attack = std::function<void(Bytes&)>;

  Meddler(std::string target, std::size_t held, Attack attack)
      : target_(std::move(target)),
        held_(held),
        attack_(std::move(attack)),
        listener_(stream::listen_on(stream::Address("127.0.0.1", 0))) {}

  std::string offer() const { return stream::local_address(listener_.get()).text(); }
  const Bytes& seen() const { return from_dialer_; }

  void work() {
    if (!dialer_) {
      dialer_.reset(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK));
      if (!dialer_) return;
      acceptor_ = connect_to(target_);
    }
    pull(dialer_.get(), from_dialer_);
    pull(acceptor_.get(), from_acceptor_);
    if (!attacked_ && from_dialer_.size() >= kHandshake + held_) {
      attacked_ = true;
      Bytes rest(from_dialer_.begin() + kHandshake, from_dialer_.end());
      from_dialer_.resize(kHandshake);
      attack_(rest);
      from_dialer_.insert(from_dialer_.end(), rest.begin(), rest.end());
    }
    if (spoiled_ < from_dialer_.size()) {
      from_dialer_[std::exchange(spoiled_, SIZE_MAX)] ^= std::byte{1};
    }
    const std::size_t ready =
        attacked_ ? from_dialer_.size() : std::min(from_dialer_.size(), kHandshake);
    push(acceptor_.get(), std::span(from_dialer_).first(ready), to_acceptor_);
    push(dialer_.get(), from_acceptor_, to_dialer_);
  }
  void hang_up() { acceptor_.reset(); }
  // Flips a bit of the byte at `offset` of all bytes that the dialer sends.
  void spoil_at(std::size_t offset) { spoiled_ = offset; }

 private:
  static void pull(int fd, Bytes& into) {
    std::array<std::byte, 65536> buffer;
    for (ssize_t n; (n = recv(fd, buffer.data(), buffer.size(), MSG_DONTWAIT)) > 0;) {
      into.insert(into.end(), buffer.begin(), buffer.begin() + n);
    }
  }
  static void push(int fd, std::span<const std::byte> bytes, std::size_t& sent) {
    if (sent == bytes.size()) return;
    const auto rest = bytes.subspan(sent);
    const ssize_t n = send(fd, rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) sent += static_cast<std::size_t>(n);
  }

  const std::string target_;
  const std::size_t held_;
  const Attack attack_;
  UniqueFd listener_;
  UniqueFd dialer_;
  UniqueFd acceptor_;
  Bytes from_dialer_;
  Bytes from_acceptor_;
  std::size_t to_acceptor_ = 0;
  std::size_t to_dialer_ = 0;
  std::size_t spoiled_ = SIZE_MAX;
  bool attacked_ = false;
};

// Rank 0, which dials rank 1 through a Meddler.
struct Attacked {
  Attacked(Encryption mode, std::size_t held, Meddler::Attack attack)
      : ranks({[&](int) { return make(mode, held, std::move(attack)); }, 4096}, 2,
              findings) {}

  World make(Encryption mode, std::size_t held, Meddler::Attack attack) {
    World world;
    for (int rank = 0; rank < 2; ++rank) {
      TcpOptions options = tcp_options(rank);
      options.encryption = mode;
      world.transports.push_back(std::make_unique<TcpTransport>(options));
    }
    Transport& first = *world.transports[0];
    Transport& second = *world.transports[1];
    meddler = std::make_unique<Meddler>(second.offer(), held, std::move(attack));
    world.channels = {{nullptr, &first.channel(1, meddler->offer())},
                      {&second.channel(0, first.offer()), nullptr}};
    return world;
  }
  bool work_until(std::string_view what, const std::function<bool()>& done) {
    return ranks.spin(what, [&] {
      meddler->work();
      return done();
    });
  }
  std::string await_loss(int rank) {
    work_until("loss", [&] { return ranks[rank].lost.contains(1 - rank); });
    return ranks[rank].lost[1 - rank].text;
  }

  Findings findings;
  std::unique_ptr<Meddler> meddler;
  Ranks ranks;
};

const std::string kRefused = "bytes that the peer did not send have arrived";

// Sends two eager messages through an attack; returns how rank 1 lost rank 0.
std::string attack_messages(Encryption mode, const Meddler::Attack& attack) {
  Attacked pair(mode, kFrame + 2 * kMessage, attack);
  const Sending first = pair.ranks[0].send(1, 1, kShortBytes);
  const Sending second = pair.ranks[0].send(1, 2, kShortBytes);
  const std::string text = pair.await_loss(1);
  // Whatever was delivered before is right.
  for (const auto& reader : pair.ranks[1].arrived) {
    reader->accept(Reader::Mode::kViews);
    reader->read(SIZE_MAX, pair.findings);
    reader->verify(pair.findings);
  }
  CHECK_EQ(pair.findings.size(), 0u);
  CHECK(pair.ranks[1].find(2) == nullptr);
  return text;
}

auto at(Bytes& bytes, std::size_t offset) {
  return bytes.begin() + static_cast<std::ptrdiff_t>(offset);
}

TEST(tcp_encryption, a_link_passes_on_what_nobody_changes) {
  for (const Encryption mode :
       {Encryption::kOff, Encryption::kAuth, Encryption::kFull}) {
    Attacked pair(mode, 0, [](Bytes&) {});
    const Sending sending = pair.ranks[0].send(1, 1, 1'000'000);
    pair.work_until("head", [&] { return pair.ranks[1].find(1) != nullptr; });
    Reader* const reader = pair.ranks[1].find(1);
    REQUIRE(reader != nullptr);
    reader->accept(Reader::Mode::kInto);
    pair.work_until("payload", [&] {
      reader->read(SIZE_MAX, pair.findings);
      return reader->done();
    });
    reader->verify(pair.findings);
    CHECK_EQ(pair.findings.size(), 0u);
    // The wire shows the tensor in clear, or not.
    Bytes start(4096);
    fill(start, 1);
    const Bytes& seen = pair.meddler->seen();
    const bool in_clear =
        std::search(seen.begin(), seen.end(), start.begin(), start.end()) != seen.end();
    CHECK_EQ(in_clear, mode != Encryption::kFull);
  }
}

TEST(tcp_encryption, one_flipped_bit_ends_the_link) {
  for (const Encryption mode : {Encryption::kAuth, Encryption::kFull}) {
    // In a frame, its tag, a header, an eager payload, its tag.
    for (const std::size_t offset :
         {std::size_t{4}, kFrame - 1, kFrame + 8, kMessage - 30, kMessage - 1}) {
      const std::string text = attack_messages(
          mode, [&](Bytes& bytes) { bytes[kFrame + offset] ^= std::byte{1}; });
      expect_part(text, "lost the connection to rank 0: 127.0.0.1:");
      expect_part(text, kRefused);
    }
  }
}

TEST(tcp_encryption, replayed_omitted_and_reordered_messages_end_the_link) {
  const Meddler::Attack replay = [](Bytes& bytes) {
    const Bytes first(at(bytes, kFrame), at(bytes, kFrame + kMessage));
    std::copy(first.begin(), first.end(), at(bytes, kFrame + kMessage));
  };
  const Meddler::Attack omit = [](Bytes& bytes) {
    bytes.erase(at(bytes, kFrame), at(bytes, kFrame + kMessage));
  };
  const Meddler::Attack swap = [](Bytes& bytes) {
    std::swap_ranges(at(bytes, kFrame), at(bytes, kFrame + kMessage),
                     at(bytes, kFrame + kMessage));
  };
  // The frame of one message before the payload of another.
  const Meddler::Attack splice = [](Bytes& bytes) {
    std::swap_ranges(at(bytes, kFrame), at(bytes, 2 * kFrame),
                     at(bytes, kFrame + kMessage));
  };
  for (const auto& attack : {replay, omit, swap, splice}) {
    expect_part(attack_messages(Encryption::kFull, attack), kRefused);
  }
}

TEST(tcp_encryption, a_link_cut_in_mid_message_delivers_nothing_of_it) {
  Attacked pair(Encryption::kFull, kFrame + kMessage,
                [](Bytes& bytes) { bytes.resize(kFrame + kMessage - 1); });
  const Sending sending = pair.ranks[0].send(1, 1, kShortBytes);
  for (int i = 0; i < 1000; ++i) {
    pair.meddler->work();
    pair.ranks[0].poll();
    pair.ranks[1].poll();
  }
  pair.meddler->hang_up();
  expect_part(pair.await_loss(1), "closed by the peer without a goodbye");
  CHECK(pair.ranks[1].arrived.empty());
}

TEST(tcp_encryption, a_large_payload_is_delivered_up_to_the_changed_chunk) {
  for (const auto how : {Reader::Mode::kViews, Reader::Mode::kInto}) {
    constexpr std::size_t kChunk = kFrame + stream::kSegment + stream::kTagNbytes;
    constexpr std::size_t kBefore =
        kFrame + kFrame + sizeof(Header) + stream::kTagNbytes;
    Attacked pair(Encryption::kFull, kBefore, [](Bytes&) {});
    const Sending sending = pair.ranks[0].send(1, 1, 4 * stream::kSegment);
    pair.work_until("head", [&] { return pair.ranks[1].find(1) != nullptr; });
    Reader* const reader = pair.ranks[1].find(1);
    REQUIRE(reader != nullptr);
    pair.meddler->spoil_at(kHandshake + kBefore + kChunk + 5000);
    reader->accept(how);
    expect_part(pair.await_loss(1), kRefused);
    CHECK_EQ(reader->message().readable().size(), stream::kSegment);
  }
}

TEST(tcp_encryption, ranks_with_other_modes_do_not_connect) {
  Findings findings;
  Ranks ranks(tcp_scheme([](TcpOptions& options) {
                options.connect_timeout = options.refused_timeout = 300ms;
                options.encryption =
                    options.rank == 0 ? Encryption::kFull : Encryption::kOff;
              }),
              2, findings);
  const Sending sending = ranks[0].send(1, 1, 10);
  ranks.drive("loss", [&] { return ranks[0].lost.contains(1); });
  expect_part(ranks[0].lost[1].text, "another job?");
}

}  // namespace
}  // namespace bluecomm::test
