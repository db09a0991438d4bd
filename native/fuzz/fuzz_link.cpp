// A peer that knows the key sends any frames in any order, while this side sends and
// receives messages. The worst result is the end of the link.
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <deque>
#include <memory>
#include <vector>

#include "fuzz/fuzz.h"
#include "stream/link.h"

namespace {

using namespace bluecomm;
using namespace bluecomm::stream;

constexpr std::size_t kStreams = 4;  // two of them join later
constexpr std::size_t kHead = 256;

struct Received {
  std::unique_ptr<ReceivedMessage> message;
  bool accepted = false;
  std::vector<std::byte> into;
};

struct Sent {
  std::vector<std::byte> payload;
  std::unique_ptr<SentMessage> message;
};

class LinkSession {
 public:
  LinkSession()
      : link_(kHead, {.unsolicited_bytes = kSegment}, std::make_shared<SegmentPool>()) {
    add_stream();
    add_stream();
  }

  void step(fuzz::Input& input) {
    const std::uint8_t what = input.byte();
    const std::size_t which = input.byte();
    switch (what % 10) {
      case 0:
        write(which, input.take(input.byte()));
        break;
      case 1:
      case 2:
        write_frame(which, input);
        break;
      case 3:
        send(which * 1000u);
        break;
      case 4:
        if (!sent_.empty()) sent_.erase(sent_.begin() + at(which, sent_));
        break;
      case 5:
        if (!received_.empty())
          accept(received_[static_cast<std::size_t>(at(which, received_))],
                 input.byte());
        break;
      case 6:
        if (!received_.empty())
          consume(received_[static_cast<std::size_t>(at(which, received_))],
                  input.byte());
        break;
      case 7:
        if (!received_.empty())
          received_.erase(received_.begin() + at(which, received_));
        break;
      case 8:
        if (which == 0) link_.say_goodbye();
        if (which == 1) peers_[0].reset();
        if (which == 2) end();
        if (which == 3) add_stream();
        break;
      case 9:
        expect(which * 1000u);
        break;
    }
    progress();
  }

 private:
  template <typename T>
  static std::ptrdiff_t at(std::size_t which, const std::vector<T>& all) {
    return static_cast<std::ptrdiff_t>(which % all.size());
  }

  void end() {
    ended_ = true;
    link_.end();
  }

  // Adds a further stream.
  void add_stream() {
    const std::size_t count = link_.streams().size();
    if (ended_ || count == kStreams) return;
    int pair[2];
    MUST(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, pair) == 0);
    peers_[count].reset(pair[0]);
    link_.add(UniqueFd(pair[1]), count % 2 == 1);
  }

  void write(std::size_t stream, std::span<const std::byte> bytes) {
    const int fd = peers_[stream % kStreams].get();
    if (fd < 0 || bytes.empty()) return;
    static_cast<void>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
  }

  // A frame that is almost valid, so that it passes the first checks.
  void write_frame(std::size_t stream, fuzz::Input& input) {
    Frame frame{.kind = static_cast<FrameKind>(input.byte() % 13)};
    frame.message = input.byte() % 8;
    frame.offset = input.byte() % 16 * kSmallChunk;
    std::size_t payload = 0;
    if (frame.kind == FrameKind::kMessage) {
      frame.offset = 0;
      frame.message = announced_++;
      write_message(stream, frame, input.number() % 2'000'000);
      return;
    }
    if (frame.kind == FrameKind::kChunk) payload = input.byte() * 256u;
    frame.length = static_cast<std::uint32_t>(payload);
    write(stream, std::as_bytes(std::span(&frame, 1)));
    write(stream, std::vector<std::byte>(payload));
  }

  void write_message(std::size_t stream, Frame frame, std::size_t nbytes) {
    const bool eager = nbytes < 4096;
    frame.length = static_cast<std::uint32_t>(kHead + (eager ? nbytes : 0));
    // Every other long message is unsolicited.
    frame.flags = eager || nbytes % 2 == 1 ? kCharged : 0;
    frame.offset = nbytes;
    const std::array<std::byte, kHead> head{};
    write(stream, std::as_bytes(std::span(&frame, 1)));
    write(stream, head);
    if (eager) write(stream, std::vector<std::byte>(nbytes));
  }

  void send(std::size_t nbytes) {
    if (sent_.size() > 8) return;
    Sent& sent = sent_.emplace_back();
    sent.payload.resize(nbytes);
    sent.message = std::make_unique<SentMessage>();
    link_.send(*sent.message, std::array<std::byte, kHead>{}, sent.payload);
  }

  // Sets a buffer for one of the next messages, and announces every other one.
  void expect(std::size_t nbytes) {
    if (ended_ || expected_.size() > 30) return;
    next_expected_ = std::max(next_expected_, announced_);
    const bool announce = next_expected_ % 2 == 0;
    link_.expect(next_expected_++, expected_.emplace_back(nbytes), announce);
  }

  void accept(Received& received, std::uint8_t how) {
    const std::size_t nbytes = received.message->nbytes();
    if (received.accepted || nbytes > (4u << 20)) return;
    received.accepted = true;
    if (how % 2 == 1) received.into.resize(nbytes);
    received.message->accept(received.into);
  }

  void consume(Received& received, std::uint8_t how) {
    const auto bytes = received.message->readable();
    std::size_t sum = 0;  // reads every byte of readable()
    for (const std::byte byte : bytes) sum += std::to_integer<std::size_t>(byte);
    received.message->consume(how % 2 == 1 || sum > 1'000'000'000 ? bytes.size()
                                                                  : bytes.size() / 2);
  }

  void progress() {
    char buffer[65536];
    for (const UniqueFd& peer : peers_) {
      while (peer && recv(peer.get(), buffer, sizeof buffer, 0) > 0) {
      }
    }
    if (link_.ended()) end();
    for (Stream& stream : link_.streams()) stream.readable = stream.writable = true;
    link_.progress();
    while (auto message = link_.take_arrived()) {
      const bool accepted = message->accepted();
      received_.push_back({std::move(message), accepted, {}});
    }
    for (const Sent& sent : sent_) {
      MUST(sent.message->released() <= sent.payload.size());
    }
  }

  std::array<UniqueFd, kStreams> peers_;
  std::uint64_t announced_ = 0;
  std::uint64_t next_expected_ = 0;
  std::deque<std::vector<std::byte>> expected_;
  Link link_;
  bool ended_ = false;
  std::vector<Received> received_;
  std::vector<Sent> sent_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  fuzz::Input input(data, size);
  LinkSession session;
  while (!input.empty()) session.step(input);
  return 0;
}
