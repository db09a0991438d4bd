// Compares the plugin with NCCL's own socket transport and with a plain socket, on the
// same link: the throughput of messages as NCCL's proxy thread moves them, the CPU
// time, and the time of an 8-byte message.
//
//   net_bench --way plugin|socket|plain [--sockets 0] [--threads 0] [--ports 01]
//             [--message 1048576] [--depth 8] [--comms 1] [--seconds 2] [--warm-up 1]
//             [--round-trips 2000] [--flow-cap MB/S] [--interface lo]
//             [--peer-netns /run/netns/NAME]
//
// Prints one line of JSON. bench_channel.h explains --way, --sockets (in all),
// --threads and --ports; the plugin uses BLUECOMM_NET_STREAMS. --comms is the number of
// parallel connections, moved by one thread in turn. Like NCCL's proxy thread, it calls
// sched_yield() after each pass in which no message was posted or done. --flow-cap
// limits each connection of the sender.
#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "common/fd.h"
#include "tests/nccl_net/bench_channel.h"

namespace {

using namespace bluecomm;
using namespace bluecomm::test;
using Clock = std::chrono::steady_clock;
using BenchChannels = std::vector<std::unique_ptr<BenchChannel>>;

struct BenchSettings {
  ChannelSettings channel;
  std::size_t message = 1 << 20;
  std::size_t depth = 8;
  std::size_t comms = 1;
  double seconds = 2;
  double warm_up = 1;
  int round_trips = 2000;  // of the 8-byte message
  double flow_cap = 0;     // MB/s; 0: no limit
  std::string peer_netns;
};

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

// Limits every TCP connection that this process has opened so far.
void cap_flows(double megabytes_per_s) {
  if (megabytes_per_s == 0) return;
  const auto rate = static_cast<std::uint64_t>(megabytes_per_s * 1e6);
  for (int fd = 3; fd < 256; ++fd) {
    static_cast<void>(
        setsockopt(fd, SOL_SOCKET, SO_MAX_PACING_RATE, &rate, sizeof rate));
  }
}

struct Figures {
  double mb_s = 0;
  double cores_per_gib = 0;  // both ends, core seconds
  double half_round_trip_us = 0;
  double least_share = 0;  // the slowest of --comms, relative to the fastest
};

void send_one(BenchChannel& channel, std::byte* data, std::size_t size) {
  void* const request = channel.isend(data, size);
  while (!channel.test_sent(request)) sched_yield();
}

void recv_one(BenchChannel& channel, std::byte* data, std::size_t size) {
  void* const request = channel.irecv(data, size);
  std::size_t got = 0;
  while (!channel.test_received(request, &got)) sched_yield();
}

// Returns 0 without round trips.
double half_round_trip_us(BenchChannel& channel, bool first, int round_trips) {
  std::byte small[kSmall]{};
  const auto start = Clock::now();
  for (int k = 0; k < round_trips; ++k) {
    if (first) send_one(channel, small, kSmall);
    recv_one(channel, small, kSmall);
    if (!first) send_one(channel, small, kSmall);
  }
  return round_trips == 0 ? 0 : seconds_since(start) / round_trips / 2 * 1e6;
}

// Buffers for `depth` messages, used in turn, and the requests in flight.
struct Flow {
  Flow(BenchChannel& its_channel, const BenchSettings& its_settings)
      : channel(its_channel),
        settings(its_settings),
        memory(settings.depth * settings.message) {}

  std::byte* next() {
    return memory.data() + count++ % settings.depth * settings.message;
  }

  BenchChannel& channel;
  const BenchSettings& settings;
  std::vector<std::byte> memory;
  std::deque<void*> requests;
  std::size_t count = 0;
  std::uint64_t total = 0;  // bytes received
  bool finished = false;
};

// Posts messages while `more` is set, then the last one, and tests the oldest. Returns
// whether one was posted or done.
bool turn_sender(Flow& flow, bool more) {
  bool progressed = false;
  while (!flow.finished && flow.requests.size() < flow.settings.depth) {
    std::byte* const at = flow.next();
    flow.requests.push_back(more ? flow.channel.isend(at, flow.settings.message)
                                 : flow.channel.isend_end(at));
    flow.finished = !more;
    progressed = true;
  }
  if (flow.requests.empty()) return progressed;
  if (!flow.channel.test_sent(flow.requests.front())) return progressed;
  flow.requests.pop_front();
  return true;
}

bool turn_receiver(Flow& flow) {
  if (flow.finished) return false;
  bool progressed = false;
  while (flow.requests.size() < flow.settings.depth) {
    flow.requests.push_back(flow.channel.irecv(flow.next(), flow.settings.message));
    progressed = true;
  }
  std::size_t size = 0;
  if (!flow.channel.test_received(flow.requests.front(), &size)) return progressed;
  flow.requests.pop_front();
  flow.total += size;
  flow.finished = size != flow.settings.message;
  return true;
}

void turn_receivers(std::deque<Flow>& flows) {
  bool progressed = false;
  for (Flow& flow : flows) progressed |= turn_receiver(flow);
  if (!progressed) sched_yield();
}

std::deque<Flow> make_flows(const BenchChannels& channels,
                            const BenchSettings& settings) {
  std::deque<Flow> flows;
  for (const auto& channel : channels) flows.emplace_back(*channel, settings);
  return flows;
}

// Sends messages for the requested time. Returns the CPU seconds after the warm-up.
double run_sender(const BenchChannels& channels, const BenchSettings& settings) {
  std::deque<Flow> flows = make_flows(channels, settings);
  const auto start = Clock::now();
  double cpu_before = 0;
  bool counting = false;
  const auto is_finished = [](const Flow& one) {
    return one.finished && one.requests.empty();
  };
  while (!std::all_of(flows.begin(), flows.end(), is_finished)) {
    const double passed = seconds_since(start);
    if (!counting && passed > settings.warm_up) {
      counting = true;
      cpu_before = cpu_seconds();
    }
    const bool more = passed < settings.warm_up + settings.seconds;
    bool progressed = false;
    for (Flow& flow : flows) progressed |= turn_sender(flow, more);
    if (!progressed) sched_yield();
  }
  return cpu_seconds() - cpu_before;
}

// Measures between the end of the warm-up and the end of the first flow.
Figures run_receiver(const BenchChannels& channels, const BenchSettings& settings) {
  std::deque<Flow> flows = make_flows(channels, settings);
  const auto is_finished = [](const Flow& one) { return one.finished; };
  auto start = Clock::now();
  while (seconds_since(start) < settings.warm_up) {
    turn_receivers(flows);
  }
  for (Flow& flow : flows) flow.total = 0;
  const double cpu_before = cpu_seconds();
  start = Clock::now();
  while (std::none_of(flows.begin(), flows.end(), is_finished)) {
    turn_receivers(flows);
  }
  const double passed = seconds_since(start);
  std::vector<double> totals;
  double sum = 0;
  for (const Flow& flow : flows) {
    totals.push_back(static_cast<double>(flow.total));
    sum += totals.back();
  }
  Figures figures;
  figures.mb_s = sum / passed / 1e6;
  figures.cores_per_gib = (cpu_seconds() - cpu_before) / (sum / (1 << 30));
  const auto [least, most] = std::minmax_element(totals.begin(), totals.end());
  figures.least_share = *least / *most;
  while (!std::all_of(flows.begin(), flows.end(), is_finished)) {
    turn_receivers(flows);
  }
  return figures;
}

BenchChannels open_bench_channels(int control, const BenchSettings& settings) {
  BenchChannels channels;
  while (channels.size() < settings.comms)
    channels.push_back(open_bench_channel(control, settings.channel));
  return channels;
}

[[noreturn]] void run_child(int control, const BenchSettings& settings) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  try {
    if (!settings.peer_netns.empty()) {
      const UniqueFd netns(open(settings.peer_netns.c_str(), O_RDONLY | O_CLOEXEC));
      if (setns(netns.get(), CLONE_NEWNET) != 0) throw std::runtime_error("setns");
    }
    const BenchChannels channels = open_bench_channels(control, settings);
    half_round_trip_us(*channels.front(), false, settings.round_trips);
    const Figures figures = run_receiver(channels, settings);
    send_bytes(control, &figures, sizeof figures);
    char bye = 0;
    receive_bytes(control, &bye, 1);
    _exit(0);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "receiver: %s\n", error.what());
    _exit(1);
  }
}

Figures measure(const BenchSettings& settings) {
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
    const BenchChannels channels = open_bench_channels(mine.get(), settings);
    const double latency =
        half_round_trip_us(*channels.front(), true, settings.round_trips);
    cap_flows(settings.flow_cap);
    const double cpu = run_sender(channels, settings);
    receive_bytes(mine.get(), &figures, sizeof figures);
    figures.half_round_trip_us = latency;
    figures.cores_per_gib += cpu / (figures.mb_s * 1e6 * settings.seconds / (1 << 30));
    send_bytes(mine.get(), "x", 1);
    // The other process must exit first, as it has posted receives.
    waitpid(child, nullptr, 0);
  }
  return figures;
}

BenchSettings parse(int argc, char** argv) {
  BenchSettings settings;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string flag = argv[i];
    const char* const value = argv[i + 1];
    if (flag == "--way")
      settings.channel.kind = value;
    else if (flag == "--sockets")
      settings.channel.sockets = std::atoi(value);
    else if (flag == "--threads")
      settings.channel.threads = std::atoi(value);
    else if (flag == "--ports")
      settings.channel.ports = value;
    else if (flag == "--interface")
      settings.channel.interface = value;
    else if (flag == "--message")
      settings.message = std::strtoul(value, nullptr, 10);
    else if (flag == "--depth")
      settings.depth = std::strtoul(value, nullptr, 10);
    else if (flag == "--comms")
      settings.comms = std::strtoul(value, nullptr, 10);
    else if (flag == "--seconds")
      settings.seconds = std::atof(value);
    else if (flag == "--warm-up")
      settings.warm_up = std::atof(value);
    else if (flag == "--round-trips")
      settings.round_trips = std::atoi(value);
    else if (flag == "--flow-cap")
      settings.flow_cap = std::atof(value);
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
        "{\"mb_s\": %.1f, \"core_s_per_gib\": %.4f, \"half_round_trip_us\": %.2f, "
        "\"least_share\": %.3f}\n",
        figures.mb_s, figures.cores_per_gib, figures.half_round_trip_us,
        figures.least_share);
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "net_bench: %s\n", error.what());
    return 1;
  }
}
