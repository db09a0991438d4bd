#include "tests/transport/tcp_support.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <cerrno>
#include <stdexcept>
#include <utility>

#include "common/sha256.h"
#include "stream/socket.h"

namespace bluecomm::test {

TcpOptions tcp_options(int rank) {
  TcpOptions options;
  options.rank = rank;
  options.job = "tests";
  options.epoch = 1;
  options.key.assign(32, std::byte{7});
  options.addresses = {"127.0.0.1"};
  options.streams = 1;
  return options;
}

Scheme tcp_scheme(const Adjust& adjust) {
  return {[adjust](int size) {
            World world;
            for (int rank = 0; rank < size; ++rank) {
              TcpOptions options = tcp_options(rank);
              if (adjust) adjust(options);
              world.transports.push_back(std::make_unique<TcpTransport>(options));
            }
            connect(world);
            return world;
          },
          TcpOptions{}.eager_bytes};
}

Scheme tcp_alone(const Adjust& adjust, const std::string& offer) {
  return {[adjust, offer](int) {
            World world;
            TcpOptions options = tcp_options(0);
            if (adjust) adjust(options);
            world.transports.push_back(std::make_unique<TcpTransport>(options));
            world.channels = {{nullptr, &world.transports[0]->channel(1, offer)}};
            return world;
          },
          TcpOptions{}.eager_bytes};
}

void expect_part(const std::string& text, std::string_view part) {
  if (text.find(part) != std::string::npos) return;
  record_failure("text", 0, "'" + text + "' has no '" + std::string(part) + "' in it");
}

UniqueFd connect_to(std::string_view offer) {
  const stream::Address address = stream::parse_offer(offer).front();
  UniqueFd fd;
  const int error = stream::start_connecting(address, fd);
  pollfd wait{fd.get(), POLLOUT, 0};
  if (error != 0 || ::poll(&wait, 1, 60'000) != 1 ||
      stream::connect_error(fd.get()) != 0) {
    throw std::runtime_error("cannot connect to " + address.text());
  }
  return fd;
}

void write_all(int fd, std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const ssize_t n = send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN) return;  // the peer has closed the connection
    if (n > 0) bytes = bytes.subspan(static_cast<std::size_t>(n));
  }
}

bool has_ended(int fd, std::string& said) {
  char buffer[4096];
  const ssize_t n = recv(fd, buffer, sizeof buffer, MSG_DONTWAIT);
  if (n > 0) said.append(buffer, static_cast<std::size_t>(n));
  return n == 0 || (n < 0 && errno == ECONNRESET);
}

HandMadePeer::HandMadePeer(std::string offer, std::uint32_t streams, Spoil spoil)
    : offer_(std::move(offer)), wanted_(streams), spoil_(std::move(spoil)) {
  hello_.from = 1;
  hello_.to = 0;
  const TcpOptions options = tcp_options(1);
  hello_.epoch = options.epoch;
  hello_.job = sha256(std::as_bytes(std::span(options.job)));
  hello_.group = stream::random_nonce();
  dial();
}

void HandMadePeer::dial() {
  TcpOptions options = tcp_options(1);
  stream::Hello hello = hello_;
  hello.stream = static_cast<std::uint32_t>(streams_.size());
  hello.nonce = stream::random_nonce();
  if (spoil_) spoil_(hello, options);
  streams_.push_back({connect_to(offer_), stream::Handshake::dial(options.key, hello)});
}

bool HandMadePeer::greet() {
  PeerStream& last = streams_.back();
  static_cast<void>(stream::drive(last.fd.get(), last.handshake));
  if (last.handshake.state() != stream::Handshake::State::kDone) return false;
  if (wanted_ == 1) return true;
  std::array<std::byte, sizeof(stream::Frame)> open;
  const ssize_t n = recv(last.fd.get(), open.data(), open.size() - last.opened, 0);
  if (n > 0) last.opened += static_cast<std::size_t>(n);
  if (last.opened < open.size()) return false;
  if (streams_.size() == wanted_) return true;
  dial();
  return false;
}

void HandMadePeer::send(const stream::Frame& frame, std::size_t payload_sent,
                        std::size_t stream) {
  write_all(fd(stream), std::as_bytes(std::span(&frame, 1)));
  write_all(fd(stream), std::vector<std::byte>(payload_sent, std::byte{42}));
}

void HandMadePeer::announce(std::uint64_t message, std::uint64_t tag,
                            std::size_t nbytes) {
  const stream::Frame frame{.kind = stream::FrameKind::kMessage,
                            .length = sizeof(Header),
                            .message = message,
                            .offset = nbytes};
  const Header header = make_header(tag, nbytes);
  send(frame, 0);
  write_all(fd(), std::as_bytes(std::span(&header, 1)));
}

}  // namespace bluecomm::test
