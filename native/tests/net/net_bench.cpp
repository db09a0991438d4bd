// The plugin beside NCCL's own way over sockets, on the same link: goodput of messages
// as NCCL's progress thread moves them, cores, and the time of an 8-byte message.
//
//   net_bench --way plugin|socket [--sockets 0] [--threads 0] [--message 1048576]
//             [--depth 8] [--seconds 2] [--warm-up 1] [--flow-cap MB/S]
//             [--interface lo] [--peer-netns /run/netns/NAME]
//
// Prints one line of JSON. Ways other than the default of NCCL's sockets have --threads
// and --sockets (in all) of them; the plugin has BLUECOMM_NET_STREAMS. --flow-cap
// limits each connection of the sender.
#include <fcntl.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "net/devices.h"
#include "stream/socket.h"
#include "tests/net/player.h"
#include "tests/net/socket_strategy.h"

namespace {

using namespace bluecomm;
using namespace bluecomm::test;
using Clock = std::chrono::steady_clock;

struct Settings {
  std::string way = "plugin";
  int sockets = 0;
  int threads = 0;
  std::size_t message = 1 << 20;
  std::size_t depth = 8;
  double seconds = 2;
  double warm_up = 1;
  double flow_cap = 0;  // MB/s; 0: none
  std::string interface = "lo";
  std::string peer_netns;
};

constexpr int kRoundTrips = 2000;
constexpr std::size_t kSmall = 8;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) / 1e6;
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// Caps every TCP connection that this process has by now.
void cap_flows(double megabytes_per_s) {
  if (megabytes_per_s == 0) return;
  const auto rate = static_cast<std::uint64_t>(megabytes_per_s * 1e6);
  for (int fd = 3; fd < 256; ++fd) {
    static_cast<void>(
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
  }
}

void say(int line, const void* data, std::size_t nbytes) {
  if (write(line, data, nbytes) != static_cast<ssize_t>(nbytes)) {
    throw std::runtime_error("the other process is gone");
  }
}

template <typename T>
T hear(int line) {
  T value;
  if (recv(line, &value, sizeof value, MSG_WAITALL) != sizeof value) {
    throw std::runtime_error("the other process is gone");
  }
  return value;
}

// One end of a channel in both directions.
class Way {
 public:
  virtual ~Way() = default;
  virtual void* isend(std::byte* data, std::size_t size) = 0;  // null: busy
  virtual void* irecv(std::byte* data, std::size_t size) = 0;
  virtual bool test(void* request, std::size_t* size) = 0;
  // Of the direction that isend takes.
  virtual bool test_sent(void* request) = 0;
};

class PluginWay final : public Way {
 public:
  explicit PluginWay(int line) : player_(Player::load(11)) {
    check(player_->init());
    HandleBytes handle{};
    void* listen_comm = nullptr;
    check(player_->listen(0, handle, &listen_comm));
    say(line, handle.data(), handle.size());
    handle = hear<HandleBytes>(line);
    while (send_ == nullptr || recv_ == nullptr) {
      if (send_ == nullptr) check(player_->connect(0, handle, &send_));
      if (recv_ == nullptr) check(player_->accept(listen_comm, &recv_));
      sched_yield();
    }
    check(player_->close_listen(listen_comm));
  }
  ~PluginWay() override {
    player_->close_send(send_);
    player_->close_recv(recv_);
  }

  void* isend(std::byte* data, std::size_t size) override {
    void* request = nullptr;
    check(player_->isend(send_, {data, size}, 0, &request));
    return request;
  }
  void* irecv(std::byte* data, std::size_t size) override {
    void* request = nullptr;
    check(player_->irecv(recv_, {data, size}, 0, &request));
    return request;
  }
  bool test(void* request, std::size_t* size) override {
    int done = 0;
    int nbytes = 0;
    check(player_->test(request, &done, &nbytes));
    *size = static_cast<std::size_t>(nbytes);
    return done != 0;
  }
  bool test_sent(void* request) override {
    std::size_t size = 0;
    return test(request, &size);
  }

 private:
  static void check(int result) {
    if (result != 0) throw std::runtime_error("result " + std::to_string(result));
  }

  std::unique_ptr<Player> player_;
  void* send_ = nullptr;
  void* recv_ = nullptr;
};

class SocketWay final : public Way {
 public:
  SocketWay(int line, const Settings& settings) {
    const auto card = net::find_devices({"=" + settings.interface, "", ""}).front();
    const UniqueFd listener = stream::listen_on(card.address);
    fcntl(listener.get(), F_SETFL, 0);  // waits
    const stream::Address mine = stream::local_address(listener.get());
    sockaddr_storage storage{};
    std::memcpy(&storage, mine.data(), mine.size());
    say(line, &storage, sizeof storage);
    storage = hear<sockaddr_storage>(line);
    const stream::Address theirs(storage, mine.size());
    // All of one direction, then the other; the backlog holds them.
    std::vector<UniqueFd> out;
    for (int k = 0; k <= settings.sockets; ++k) out.push_back(dial(theirs));
    std::vector<UniqueFd> in;
    for (int k = 0; k <= settings.sockets; ++k) {
      in.emplace_back(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
    send_ = make(true, std::move(out), settings.threads);
    recv_ = make(false, std::move(in), settings.threads);
  }

  void* isend(std::byte* data, std::size_t size) override {
    return send_->post(data, size);
  }
  void* irecv(std::byte* data, std::size_t size) override {
    return recv_->post(data, size);
  }
  bool test(void* request, std::size_t* size) override {
    return recv_->test(*static_cast<SocketStrategy::Request*>(request), size);
  }
  bool test_sent(void* request) override {
    std::size_t size = 0;
    return send_->test(*static_cast<SocketStrategy::Request*>(request), &size);
  }

 private:
  static UniqueFd dial(const stream::Address& address) {
    UniqueFd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (connect(fd.get(), address.data(), address.size()) != 0) {
      throw std::runtime_error("cannot connect to " + address.text());
    }
    return fd;
  }
  static std::unique_ptr<SocketStrategy> make(bool sends, std::vector<UniqueFd> fds,
                                              int threads) {
    UniqueFd control = std::move(fds.front());
    fds.erase(fds.begin());
    return std::make_unique<SocketStrategy>(sends, std::move(control), std::move(fds),
                                            threads);
  }

  std::unique_ptr<SocketStrategy> send_;
  std::unique_ptr<SocketStrategy> recv_;
};

std::unique_ptr<Way> make_way(int line, const Settings& settings) {
  if (settings.way == "plugin") {
    setenv("NCCL_SOCKET_IFNAME", ("=" + settings.interface).c_str(), 1);
    return std::make_unique<PluginWay>(line);
  }
  return std::make_unique<SocketWay>(line, settings);
}

struct Figures {
  double mb_s = 0;
  double cores_per_gib = 0;  // both ends, core seconds
  double half_round_trip_us = 0;
};

void send_one(Way& way, std::byte* data, std::size_t size) {
  void* const request = way.isend(data, size);
  while (!way.test_sent(request)) {
  }
}

void recv_one(Way& way, std::byte* data, std::size_t size) {
  void* const request = way.irecv(data, size);
  std::size_t got = 0;
  while (!way.test(request, &got)) {
  }
}

double half_round_trip_us(Way& way, bool first) {
  std::byte small[kSmall]{};
  const auto start = Clock::now();
  for (int k = 0; k < kRoundTrips; ++k) {
    if (first) send_one(way, small, kSmall);
    recv_one(way, small, kSmall);
    if (!first) send_one(way, small, kSmall);
  }
  return seconds_since(start) / kRoundTrips / 2 * 1e6;
}

// Messages one after another until `until`, then a short one as the last. Returns the
// core seconds that they took.
double run_sender(Way& way, const Settings& settings) {
  std::vector<std::byte> memory(settings.depth * settings.message);
  std::deque<void*> requests;
  const auto start = Clock::now();
  double cpu_before = 0;
  bool counting = false;
  bool last = false;
  for (std::size_t k = 0; !last || !requests.empty();) {
    if (!counting && seconds_since(start) > settings.warm_up) {
      counting = true;
      cpu_before = cpu_seconds();
    }
    if (!last && requests.size() < settings.depth) {
      last = seconds_since(start) > settings.warm_up + settings.seconds;
      std::byte* const at = memory.data() + k++ % settings.depth * settings.message;
      requests.push_back(way.isend(at, last ? 1 : settings.message));
      continue;
    }
    if (way.test_sent(requests.front())) requests.pop_front();
  }
  return cpu_seconds() - cpu_before;
}

Figures run_receiver(Way& way, const Settings& settings) {
  std::vector<std::byte> memory(settings.depth * settings.message);
  std::deque<void*> requests;
  const auto begin = Clock::now();
  Clock::time_point counted_from{};
  double cpu_before = 0;
  std::size_t total = 0;
  for (std::size_t k = 0;;) {
    while (requests.size() < settings.depth) {
      std::byte* const at = memory.data() + k++ % settings.depth * settings.message;
      requests.push_back(way.irecv(at, settings.message));
    }
    std::size_t size = 0;
    if (!way.test(requests.front(), &size)) continue;
    requests.pop_front();
    if (size != settings.message) break;
    if (total > 0 || seconds_since(begin) > settings.warm_up) {
      if (total == 0) {
        counted_from = Clock::now();
        cpu_before = cpu_seconds();
        total = 1;
      } else {
        total += size;
      }
    }
  }
  Figures figures;
  figures.mb_s = static_cast<double>(total) / seconds_since(counted_from) / 1e6;
  figures.cores_per_gib =
      (cpu_seconds() - cpu_before) / (static_cast<double>(total) / (1 << 30));
  return figures;
}

[[noreturn]] void run_child(int line, const Settings& settings) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    if (!settings.peer_netns.empty()) {
      const UniqueFd netns(open(settings.peer_netns.c_str(), O_RDONLY | O_CLOEXEC));
      if (setns(netns.get(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
    }
    const auto way = make_way(line, settings);
    half_round_trip_us(*way, false);
    const Figures figures = run_receiver(*way, settings);
    say(line, &figures, sizeof figures);
    hear<char>(line);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "receiver: %s\n", error.what());
    _exit(1);
  }
}

Figures measure(const Settings& settings) {
  int lines[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, lines) != 0) {
    throw std::runtime_error("socketpair");
  }
  const UniqueFd mine(lines[0]);
  UniqueFd theirs(lines[1]);
  const int child = fork();
  if (child == 0) run_child(theirs.get(), settings);
  theirs.reset();
  Figures figures;
  {
    const auto way = make_way(mine.get(), settings);
    const double latency = half_round_trip_us(*way, true);
    cap_flows(settings.flow_cap);
    const double cpu = run_sender(*way, settings);
    figures = hear<Figures>(mine.get());
    figures.half_round_trip_us = latency;
    figures.cores_per_gib += cpu / (figures.mb_s * 1e6 * settings.seconds / (1 << 30));
    say(mine.get(), "x", 1);
    // A receive that was posted ahead ends with the other process.
    waitpid(child, nullptr, 0);
  }
  return figures;
}

Settings parse(int argc, char** argv) {
  Settings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = argv[i + 1];
    if (flag == "--way")
      settings.way = value;
    else if (flag == "--sockets")
      settings.sockets = std::atoi(value);
    else if (flag == "--threads")
      settings.threads = std::atoi(value);
    else if (flag == "--message")
      settings.message = std::strtoul(value, nullptr, 10);
    else if (flag == "--depth")
      settings.depth = std::strtoul(value, nullptr, 10);
    else if (flag == "--seconds")
      settings.seconds = std::atof(value);
    else if (flag == "--warm-up")
      settings.warm_up = std::atof(value);
    else if (flag == "--flow-cap")
      settings.flow_cap = std::atof(value);
    else if (flag == "--interface")
      settings.interface = value;
    else if (flag == "--peer-netns")
      settings.peer_netns = value;
    else
      throw std::runtime_error("unknown flag " + flag);
  }
  return settings;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    signal(SIGPIPE, SIG_IGN);
    const Figures figures = measure(parse(argc, argv));
    std::printf(
        "{\"mb_s\": %.1f, \"core_s_per_gib\": %.4f, \"half_round_trip_us\": %.2f}\n",
        figures.mb_s, figures.cores_per_gib, figures.half_round_trip_us);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "net_bench: %s\n", error.what());
    return 1;
  }
}
