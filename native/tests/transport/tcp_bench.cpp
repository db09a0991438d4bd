// Measures the goodput of the tcp transport and of a plain socket in one run.
//
//    tcp_bench [--streams 0] [--seconds 3] [--warm-up 1] [--flow-cap MB/S]
//              [--address 127.0.0.1[,MORE]] [--peer-address 127.0.0.1[,MORE]]
//              [--peer-netns /run/netns/NAME] [--encryption off]
//
// Prints one line of JSON. --flow-cap limits the rate of each of the sender's
// connections. ours_mb_per_cpu_s is what the sender moves in a second of processor
// time.
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "stream/socket.h"
#include "transport/tcp/transport.h"

namespace {

using namespace bluecomm;
using Clock = std::chrono::steady_clock;

struct BenchSettings {
  int streams = 0;
  double seconds = 3;
  double warm_up = 1;   // time for the link to open more streams
  double flow_cap = 0;  // MB/s; 0 for no limit
  std::string address = "127.0.0.1";
  std::string peer_address = "127.0.0.1";
  std::string peer_netns;
  stream::Encryption encryption = stream::Encryption::kOff;
};

constexpr std::size_t kMessage = 16 << 20;
constexpr std::size_t kInFlight = 4;
constexpr std::size_t kPiece = 1 << 20;  // per call on the plain socket

[[noreturn]] void fail(const char* what) {
  std::perror(what);
  std::exit(1);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

// Returns the processor time of this process.
double cpu_seconds() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(used.ru_utime) + seconds(used.ru_stime);
}

// Caps the rate of every TCP connection that this process has now.
void cap_flows(double megabytes_per_s) {
  if (megabytes_per_s == 0) return;
  const auto rate = static_cast<std::uint64_t>(megabytes_per_s * 1e6);
  for (int fd = 3; fd < 128; ++fd) {
    static_cast<void>(
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
  }
}

std::vector<std::string> split(const std::string& text) {
  std::vector<std::string> parts;
  for (std::size_t at = 0; at <= text.size();) {
    const std::size_t comma = std::min(text.find(',', at), text.size());
    parts.push_back(text.substr(at, comma - at));
    at = comma + 1;
  }
  return parts;
}

// --- A plain socket ------------------------------------------------------------------

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

double plain_sender(const stream::Address& address, const BenchSettings& settings) {
  const UniqueFd fd(socket(address.family(), SOCK_STREAM, 0));
  if (connect(fd.get(), address.data(), address.size()) != 0) fail("connect");
  cap_flows(settings.flow_cap);
  const std::vector<char> data(kMessage);
  std::size_t sent = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < settings.seconds) {
    const std::size_t at = sent % data.size();
    const ssize_t n =
        write(fd.get(), data.data() + at, std::min(kPiece, data.size() - at));
    if (n < 0) fail("write");
    sent += static_cast<std::size_t>(n);
  }
  return static_cast<double>(sent) / seconds_since(start);
}

// --- The transport -------------------------------------------------------------------

class Rank : public Receiver {
 public:
  Rank(int rank, const BenchSettings& settings)
      : transport_([&] {
          TcpOptions options;
          options.rank = rank;
          options.key.assign(32, std::byte{7});
          options.streams = settings.streams;
          options.encryption = settings.encryption;
          options.addresses =
              split(rank == 0 ? settings.address : settings.peer_address);
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

// Plays rank 1: reads messages and answers pings until rank 0 says goodbye.
void receiver(const BenchSettings& settings, int in, int out) {
  if (!settings.peer_netns.empty()) {
    const UniqueFd netns(open(settings.peer_netns.c_str(), O_RDONLY));
    if (!netns || setns(netns.get(), CLONE_NEWNET) != 0) fail("setns");
  }
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM, 0));
  const stream::Address address(split(settings.peer_address).front(), 0);
  if (bind(listener.get(), address.data(), address.size()) != 0) fail("bind");
  if (listen(listener.get(), 1) != 0) fail("listen");
  write_line(out, stream::local_address(listener.get()).text());
  if (fork() == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    plain_receiver(listener.get());
  }
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

double send_for(Rank& rank, double seconds, double flow_cap) {
  const std::vector<std::byte> payload(kMessage);
  std::vector<std::unique_ptr<Outgoing>> sent;
  std::size_t done = 0;
  const auto start = Clock::now();
  while (seconds_since(start) < seconds) {
    cap_flows(flow_cap);
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

void sender(const BenchSettings& settings, int in, int out) {
  const stream::Address plain_address = stream::parse_offer(read_line(in)).front();
  const double plain = plain_sender(plain_address, settings);
  Rank rank(0, settings);
  rank.set_peer(1);
  rank.meet(read_line(in));
  write_line(out, rank.offer());
  const double round_trip = ping(rank, 2000);
  send_for(rank, settings.warm_up, settings.flow_cap);
  const double cpu_before = cpu_seconds();
  const double ours = send_for(rank, settings.seconds, 0);
  const double cpu_share = (cpu_seconds() - cpu_before) / settings.seconds;
  std::printf("{\"plain_mb_s\": %.1f, \"ours_mb_s\": %.1f, \"round_trip_us\": %.1f, ",
              plain / 1e6, ours / 1e6, round_trip * 1e6);
  std::printf("\"ours_mb_per_cpu_s\": %.1f, ", ours / 1e6 / cpu_share);
  const char* separator = "\"stream_mb\": [";
  for (const StreamCounters& stream : rank.channel().stats().streams) {
    std::printf("%s%.1f", separator, static_cast<double>(stream.bytes_sent) / 1e6);
    separator = ", ";
  }
  std::printf("]}\n");
  rank.transport().close();
  while (!rank.transport().closed()) rank.turn();
}

}  // namespace

int main(int argc, char** argv) {
  BenchSettings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    if (flag == "--streams") settings.streams = std::atoi(argv[i + 1]);
    if (flag == "--seconds") settings.seconds = std::atof(argv[i + 1]);
    if (flag == "--warm-up") settings.warm_up = std::atof(argv[i + 1]);
    if (flag == "--flow-cap") settings.flow_cap = std::atof(argv[i + 1]);
    if (flag == "--address") settings.address = argv[i + 1];
    if (flag == "--peer-address") settings.peer_address = argv[i + 1];
    if (flag == "--encryption")
      settings.encryption = stream::parse_encryption(argv[i + 1]);
    if (flag == "--peer-netns") settings.peer_netns = argv[i + 1];
  }
  int to_child[2];
  int to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) fail("pipe");
  const pid_t child = fork();
  if (child == 0) {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    receiver(settings, to_child[0], to_parent[1]);
    return 0;
  }
  sender(settings, to_parent[0], to_child[1]);
  waitpid(child, nullptr, 0);
}
