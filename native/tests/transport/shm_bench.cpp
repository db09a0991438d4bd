// Measures the shm transport between two processes. Not a test:
//
//    make build/native/transport/shm_bench && build/native/transport/shm_bench
//
// Prints one line per case. Needs two idle cores.
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <vector>

#include "tests/transport/shm_support.h"
#include "transport/shm/transport.h"

namespace bluecomm::test {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int kRounds = 20'000;
constexpr std::size_t kLarge = std::size_t{64} << 20;
constexpr int kRepeats = 8;

constexpr std::chrono::seconds kPingTime{2};

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

enum class Wait { kSpin, kSleep };

// One of two ranks. The loss of the other rank ends the program.
class Rank final : public Receiver {
 public:
  Rank(int rank, const std::string& directory)
      : options_(shm_options(rank, directory)),
        transport_(make_shm_transport(options_)) {}

  SharedMemory& memory() { return *options_.memory; }
  std::string offer() const { return transport_->offer(); }
  void connect(const std::string& offer) {
    channel_ = &transport_->channel(1 - options_.rank, offer);
  }

  // Exchanges 4 bytes for a while. Returns the microseconds of a round trip.
  double ping(Wait how) {
    const auto start = Clock::now();
    int rounds = 0;
    while (rounds < kRounds && Clock::now() < start + kPingTime) {
      exchange(++rounds, how);
    }
    const double seconds = seconds_since(start);
    exchange(0, how);
    return seconds / rounds * 1e6;
  }

  // Answers a peer that calls ping().
  void pong(Wait how) {
    for (int value = 1; value != 0;) {
      value = take(how);
      channel_->post({}, std::as_bytes(std::span(&value, 1)));
    }
  }

  void send(std::span<const std::byte> payload) {
    const auto message = channel_->send({}, payload);
    while (message->released() < payload.size()) wait(Wait::kSleep);
  }

  // Reads all bytes of a message, as a compute kernel would.
  unsigned long receive() {
    const std::unique_ptr<Incoming> message = next(Wait::kSleep);
    message->accept({});
    unsigned long sum = 0;
    while (message->consumed() < message->header().nbytes) {
      const auto readable = message->readable();
      const auto bytes = readable.first(std::min(readable.size(), kStep));
      sum += sum_of(bytes);
      message->consume(bytes.size());
      if (bytes.empty()) wait(Wait::kSleep);
    }
    return sum;
  }

  static unsigned long sum_of(std::span<const std::byte> bytes) {
    const auto* words = reinterpret_cast<const unsigned long*>(bytes.data());
    unsigned long sum = 0;
    for (std::size_t i = 0; i < bytes.size() / sizeof *words; ++i) sum += words[i];
    return sum;
  }

  void wait(Wait how) {
    if (transport_->poll(*this) || how == Wait::kSpin) return;
    if (transport_->prepare_sleep()) {
      pollfd fd{transport_->wait_fd(), POLLIN, 0};
      ::poll(&fd, 1, 1000);
    }
    transport_->finish_sleep();
  }

 private:
  static constexpr std::size_t kStep = 256 << 10;

  void exchange(int value, Wait how) {
    channel_->post({}, std::as_bytes(std::span(&value, 1)));
    take(how);
  }

  int take(Wait how) {
    const std::unique_ptr<Incoming> message = next(how);
    message->accept({});
    int value = 0;
    std::memcpy(&value, message->readable().data(), sizeof value);
    message->consume(sizeof value);
    return value;
  }

  std::unique_ptr<Incoming> next(Wait how) {
    while (!arrived_) wait(how);
    return std::move(arrived_);
  }

  void on_message(int, std::unique_ptr<Incoming> message) override {
    arrived_ = std::move(message);
  }
  void on_lost(int, Status status) override {
    std::fprintf(stderr, "%s\n", status.text.c_str());
    _exit(1);
  }
  void on_goodbye(int) override {}

  const ShmOptions options_;
  std::unique_ptr<Transport> transport_;
  Channel* channel_ = nullptr;
  std::unique_ptr<Incoming> arrived_;
};

// The offers of both ranks have the same length.
void exchange_offers(Rank& rank, int in, int out) {
  std::string offer = rank.offer();
  bool done = write(out, offer.data(), offer.size()) > 0;
  done = done && read(in, offer.data(), offer.size()) > 0;
  if (!done) _exit(1);
  rank.connect(offer);
}

[[noreturn]] void run_child(const std::string& directory, int in, int out) {
  Rank self(1, directory);
  exchange_offers(self, in, out);
  for (const Wait how : {Wait::kSpin, Wait::kSleep}) self.pong(how);
  unsigned long sum = 0;
  for (int i = 0; i < 2 * kRepeats; ++i) sum += self.receive();
  if (sum == 0) std::puts("impossible");
  while (true) self.wait(Wait::kSleep);
}

void measure_memory() {
  const std::vector<std::byte> memory(kLarge, std::byte{1});
  double best = 1e9;
  unsigned long sum = 0;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = Clock::now();
    sum += Rank::sum_of(memory);
    best = std::min(best, seconds_since(start));
  }
  std::printf("64 MiB read by one process: best %6.2f GB/s%s\n", kLarge / best / 1e9,
              sum == 0 ? " (impossible)" : "");
}

void run() {
  TemporaryDirectory directory;
  int to_child[2];
  int to_parent[2];
  if (pipe(to_child) != 0 || pipe(to_parent) != 0) _exit(1);
  const pid_t child = fork();
  if (child == 0) run_child(directory.path(), to_child[0], to_parent[1]);
  Rank self(0, directory.path());
  exchange_offers(self, to_parent[0], to_child[1]);

  for (const Wait how : {Wait::kSpin, Wait::kSleep}) {
    std::printf("4 byte exchange, %s: %6.2f us per round trip\n",
                how == Wait::kSpin ? "spinning" : "sleeping", self.ping(how));
    std::fflush(stdout);
  }
  const SharedBlock block = self.memory().allocate(kLarge);
  std::memset(block.bytes().data(), 1, kLarge);
  const std::vector<std::byte> heap(kLarge, std::byte{1});
  for (const bool in_place : {true, false}) {
    std::vector<double> times;
    for (int i = 0; i < kRepeats; ++i) {
      const auto start = Clock::now();
      self.send(in_place ? std::span<const std::byte>(block.bytes()) : heap);
      times.push_back(seconds_since(start));
    }
    std::sort(times.begin(), times.end());
    std::printf("64 MiB %-9s median %6.2f GB/s, best %6.2f, worst %6.2f\n",
                in_place ? "in place" : "staged", kLarge / times[kRepeats / 2] / 1e9,
                kLarge / times.front() / 1e9, kLarge / times.back() / 1e9);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace bluecomm::test

int main() {
  bluecomm::test::measure_memory();
  bluecomm::test::run();
}
