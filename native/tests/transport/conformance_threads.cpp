// Checks ranks that run in threads of their own, with sleeping, waking and random
// delays.
#include <poll.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"

namespace bluecomm::test {
namespace {

constexpr int kRanks = 4;
constexpr std::uint64_t kMessages = 60;  // from each rank to each other rank

class Worker {
 public:
  Worker(World& world, int rank, std::chrono::milliseconds limit,
         std::atomic<int>& finished)
      : rank_(world, rank),
        limit_(limit),
        random_(static_cast<std::uint64_t>(rank) + 1),
        finished_(finished) {}

  void run() {
    const auto deadline = std::chrono::steady_clock::now() + 2 * limit_;
    bool told = false;
    while (finished_ < kRanks) {
      if (std::chrono::steady_clock::now() > deadline) {
        findings.push_back("rank " + std::to_string(rank_.rank()) + ": read " +
                           std::to_string(read_) + " messages in the time limit");
        finished_ = kRanks;
        return;
      }
      send_some();
      const bool polled = rank_.poll();
      const bool changed = read_some() || polled;
      if (!told && done()) {
        told = true;
        ++finished_;
      }
      if (random_() % 64 == 0) std::this_thread::sleep_for(200us);
      if (!changed) sleep();
    }
    for (const auto& reader : rank_.arrived) reader->verify(findings);
  }

  Findings findings;

 private:
  void send_some() {
    if (sent_ == kMessages || random_() % 2 == 0) return;
    for (int to = 0; to < kRanks; ++to) {
      if (to == rank_.rank()) continue;
      const std::size_t limit = sent_ % 8 == 0 ? 500'000 : 10'000;
      const std::uint64_t tag = sent_ * kRanks + static_cast<std::uint64_t>(to);
      sendings_.push_back(rank_.send(to, tag, random_() % limit));
    }
    ++sent_;
  }

  bool read_some() {
    bool changed = false;
    for (const auto& reader : rank_.arrived) {
      if (reader->done()) continue;
      if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
      changed |= reader->read(1 + random_() % 200'000, findings);
      read_ += reader->done();
    }
    return changed;
  }

  bool done() const {
    return sent_ == kMessages && read_ == kMessages * (kRanks - 1) &&
           std::all_of(sendings_.begin(), sendings_.end(),
                       [](const Sending& sending) { return sending.done(); });
  }

  void sleep() {
    Transport& transport = rank_.transport();
    if (sent_ == kMessages && transport.prepare_sleep()) {
      pollfd fd{transport.wait_fd(), POLLIN, 0};
      ::poll(&fd, 1, 100);
    }
    if (sent_ == kMessages) transport.finish_sleep();
  }

  Rank rank_;
  const std::chrono::milliseconds limit_;
  std::mt19937_64 random_;
  std::atomic<int>& finished_;
  std::vector<Sending> sendings_;
  std::uint64_t sent_ = 0;
  std::uint64_t read_ = 0;
};

}  // namespace

void check_threads(const Scheme& scheme, Findings& findings) {
  World world = scheme.make_world(kRanks);
  if (world.allocate) {
    world.allocate = [mutex = std::make_shared<std::mutex>(),
                      allocate = world.allocate](int rank, std::size_t nbytes) {
      const std::scoped_lock lock(*mutex);
      return allocate(rank, nbytes);
    };
  }
  std::atomic<int> finished = 0;
  std::vector<std::unique_ptr<Worker>> workers;
  for (int rank = 0; rank < kRanks; ++rank) {
    workers.push_back(std::make_unique<Worker>(world, rank, scheme.limit, finished));
  }
  std::vector<std::thread> threads;
  for (const auto& worker : workers) threads.emplace_back([&] { worker->run(); });
  for (std::thread& thread : threads) thread.join();
  for (const auto& worker : workers) {
    findings.insert(findings.end(), worker->findings.begin(), worker->findings.end());
  }
}

}  // namespace bluecomm::test
