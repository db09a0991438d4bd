// Goodput of the tcp transport beside that of a plain socket, in one run.
//
//   tcp_bench [--streams 1] [--seconds 3] [--address 127.0.0.1]
//             [--peer-address 127.0.0.1] [--peer-netns /run/netns/NAME]
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "transport/tcp/socket.h"
#include "transport/tcp/tcp_transport.h"

namespace {

using namespace bluecomm;
using Clock = std::chrono::steady_clock;

struct Settings {
  int streams = 1;
  double seconds = 3;
  std::string address = "127.0.0.1";
  std::string peer_address = "127.0.0.1";
  std::string peer_netns;
};

constexpr std::size_t kMessage = 16 << 20;
constexpr std::size_t kInFlight = 4;
constexpr std::size_t kPiece = 1 << 20;  // of one call, for the plain socket

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// --- A plain socket
// --------------------------------------------------------------------

void plain_receiver(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  std::vector<char> memory(kInFlight * kMessage);
  std::size_t filled = 0;
  while (true) {
    const std::size_t at = filled % memory.size();
    const ssize_t n =
        read(fd, memory.data() + at, std::min(kPiece, memory.size() - at));
    if (n <= 0) break;
    filled += static_cast<std::size_t>(n);
  }
  std::exit(0);
}

double plain_sender(const tcp::Address& address, double seconds) {
  const UniqueFd fd(socket(address.family(), SOCK_STREAM, 0));
  if (connect(fd.get(), address.data(), address.size()) != 0) fail("connect");
  const std::vector<char> data(kMessage);
  std::size_t sent = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    const std::size_t at = sent % data.size();
    const ssize_t n =
        write(fd.get(), data.data() + at, std::min(kPiece, data.size() - at));
    if (n < 0) fail("write");
    sent += static_cast<std::size_t>(n);
  }
  return static_cast<double>(sent) / seconds_since(start);
}

// --- The transport
// ---------------------------------------------------------------------

class Rank : public Receiver {
 public:
  Rank(int rank, const Settings& settings)
      : transport_([&] {
          TcpOptions options;
          options.rank = rank;
          options.key.assign(32, std::byte{7});
          options.streams = settings.streams;
          options.addresses = {rank == 0 ? settings.address : settings.peer_address};
          return options;
        }()) {}

  std::string offer() const { return transport_.offer(); }
  void meet(const std::string& offer) {
    channel_ = &transport_.channel(offer_peer_, offer);
  }
  void set_peer(int peer) { offer_peer_ = peer; }

  void turn() {
    if (transport_.poll(*this)) return;
    if (!transport_.prepare_sleep()) return;
    pollfd fd{transport_.wait_fd(), POLLIN, 0};
    poll(&fd, 1, 100);
  }

  void on_message(int, std::unique_ptr<Incoming> message) override {
    const std::size_t nbytes = message->header().nbytes;
    if (nbytes < kMessage) {  // a ping
      ++pings;
      if (echo) channel_->post(Header{}, std::array<std::byte, 4>{});
      return;
    }
    into_.resize(kInFlight * kMessage);
    const std::size_t slot = next_++ % kInFlight;
    message->accept(std::span(into_).subspan(slot * kMessage, kMessage));
    incoming_.push_back(std::move(message));
  }
  void on_lost(int, Status status) override {
    std::fprintf(stderr, "%s\n", status.text.c_str());
    std::exit(1);
  }
  void on_goodbye(int) override { finished = true; }

  void consume() {
    std::erase_if(incoming_, [](const auto& message) {
      message->consume(message->readable().size());
      return message->consumed() == kMessage;
    });
  }

  Channel& channel() { return *channel_; }
  Transport& transport() { return transport_; }

  bool echo = false;
  bool finished = false;
  int pings = 0;

 private:
  TcpTransport transport_;
  int offer_peer_ = 0;
  Channel* channel_ = nullptr;
  std::vector<std::byte> into_;
  std::size_t next_ = 0;
  std::vector<std::unique_ptr<Incoming>> incoming_;
};

std::string read_line(int fd) {
  std::string text;
  char byte = 0;
  while (read(fd, &byte, 1) == 1 && byte != '\n') text += byte;
  return text;
}

void write_line(int fd, const std::string& text) {
  const std::string line = text + "\n";
  if (write(fd, line.data(), line.size()) < 0) fail("write");
}

// Plays rank 1: reads what comes, answers pings, until rank 0 says goodbye.
void receiver(const Settings& settings, int in, int out) {
  if (!settings.peer_netns.empty()) {
    const UniqueFd netns(open(settings.peer_netns.c_str(), O_RDONLY));
    if (!netns || setns(netns.get(), CLONE_NEWNET) != 0) fail("setns");
  }
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  const tcp::Address address(settings.peer_address, 0);
  if (bind(listener.get(), address.data(), address.size()) != 0) fail("bind");
  if (listen(listener.get(), 1) != 0) fail("listen");
  write_line(out, tcp::local_address(listener.get()).text());
  if (fork() == 0) plain_receiver(listener.get());
  wait(nullptr);

  Rank rank(1, settings);
  rank.echo = true;
  rank.set_peer(0);
  write_line(out, rank.offer());
  rank.meet(read_line(in));
  while (!rank.finished) {
    rank.turn();
    rank.consume();
  }
  for (int i = 0; i < 10; ++i) rank.turn();
}

double send_for(Rank& rank, double seconds) {
  const std::vector<std::byte> payload(kMessage);
  std::vector<std::unique_ptr<Outgoing>> sent;
  std::size_t done = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    while (sent.size() < kInFlight) sent.push_back(rank.channel().send({}, payload));
    rank.turn();
    std::erase_if(sent, [&](const auto& message) {
      if (message->released() < kMessage) return false;
      done += kMessage;
      return true;
    });
  }
  for (const auto& message : sent) done += message->released();
  return static_cast<double>(done) / seconds_since(start);
}

double ping(Rank& rank, int count) {
  const auto start = Clock::now();
  for (int i = 0; i < count; ++i) {
    rank.channel().post(Header{}, std::array<std::byte, 4>{});
    while (rank.pings <= i) rank.turn();
  }
  return seconds_since(start) / count;
}

void sender(const Settings& settings, int in, int out) {
  const tcp::Address plain_address = tcp::parse_offer(read_line(in)).front();
  const double plain = plain_sender(plain_address, settings.seconds);
  Rank rank(0, settings);
  rank.set_peer(1);
  rank.meet(read_line(in));
  write_line(out, rank.offer());
  const double round_trip = ping(rank, 2000);
  const double ours = send_for(rank, settings.seconds);
  std::printf(
      "plain %.1f MB/s, tcp transport with %d streams %.1f MB/s (%.1f %%), round trip "
      "of "
      "4 bytes %.1f us\n",
      plain / 1e6, settings.streams, ours / 1e6, 100 * ours / plain, round_trip * 1e6);
  rank.transport().close();
  while (!rank.transport().closed()) rank.turn();
}

}  // namespace

int main(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--streams") settings.streams = std::atoi(argv[i + 1]);
    if (flag == "--seconds") settings.seconds = std::atof(argv[i + 1]);
    if (flag == "--address") settings.address = argv[i + 1];
    if (flag == "--peer-address") settings.peer_address = argv[i + 1];
    if (flag == "--peer-netns") settings.peer_netns = argv[i + 1];
  }
  int to_child[2];
  int to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) fail("pipe");
  const pid_t child = fork();
  if (child == 0) {
    receiver(settings, to_child[0], to_parent[1]);
    return 0;
  }
  sender(settings, to_parent[0], to_child[1]);
  waitpid(child, nullptr, 0);
}
