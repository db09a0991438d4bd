// The shm transport between processes that are killed, stopped or forked.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "tests/check.h"
#include "tests/transport/peer_process.h"
#include "tests/transport/ranks.h"
#include "tests/transport/shm_support.h"
#include "transport/shm/transport.h"

namespace bluecomm::test {
namespace {

using Clock = std::chrono::steady_clock;

// Ranks 0 and 2 live in this process, and rank 1 in the peer's.
World make_world(const std::string& directory, PeerProcess& peer) {
  World world;
  for (const int rank : {0, 1, 2}) {
    world.transports.push_back(
        rank == 1 ? nullptr : make_shm_transport(shm_options(rank, directory)));
  }
  world.channels.assign(3, std::vector<Channel*>(3, nullptr));
  world.channels[0][1] = &world.transports[0]->channel(1, peer.offer());
  world.channels[0][2] = &world.transports[0]->channel(2, world.transports[2]->offer());
  world.channels[2][0] = &world.transports[2]->channel(0, world.transports[0]->offer());
  peer.begin(world.transports[0]->offer());
  return world;
}

// Sends messages of all kinds forever, from the heap and from shared memory.
void flood(Rank& self, SharedMemory& memory) {
  const SharedBlock block = memory.allocate(1 << 20);
  const std::vector<std::byte> heap(1 << 20, std::byte{1});
  std::vector<std::unique_ptr<Outgoing>> sent;
  for (std::uint64_t tag = 0;; ++tag) {
    const std::size_t nbytes = tag % 7 == 0 ? 300'000 : tag * 97 % 4097;
    const auto memory_to_send = std::span<const std::byte>(
        tag % 14 == 0 ? block.bytes() : std::span<const std::byte>(heap));
    sent.push_back(self.channel(0).send({}, memory_to_send.first(nbytes)));
    if (sent.size() > 50) sent.erase(sent.begin());
    self.poll();
  }
}

TEST(shm_process, a_peer_killed_at_any_moment_is_lost) {
  std::mt19937 random(4);
  for (int round = 0; round < 12; ++round) {
    TemporaryDirectory directory;
    std::shared_ptr<SharedMemory> memory;  // used in the child only
    PeerProcess peer(
        [&] {
          memory = std::make_shared<SharedMemory>();
          ShmOptions options = shm_options(1, directory.path());
          options.memory = memory;
          return make_shm_transport(options);
        },
        [&](Rank& self) { flood(self, *memory); });
    World world = make_world(directory.path(), peer);
    Rank self(world, 0);
    Findings findings;
    while (self.arrived.empty()) poll_or_sleep(self);
    const auto kill_at =
        Clock::now() + std::chrono::microseconds(5000 + random() % 20000);
    while (Clock::now() < kill_at) {
      self.poll();
      for (const auto& reader : self.arrived) {
        if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
        reader->read(SIZE_MAX, findings);
      }
      if (self.arrived.size() > 100) self.arrived.clear();
    }
    const int pid = peer.pid();
    peer.kill();
    const auto deadline = Clock::now() + kDeadline;
    while (self.lost.empty() && Clock::now() < deadline) poll_or_sleep(self);
    CHECK_EQ(self.lost.size(), 1u);
    CHECK(self.lost[1].text.find("rank 1 (pid " + std::to_string(pid) + ")") !=
          std::string::npos);
    CHECK(findings.empty());
    for (const auto& reader : self.arrived) reader->read(SIZE_MAX, findings);
  }
}

// Accepts and reads all messages. Confirms message `last` with a message of its own.
void read_all(Rank& self, std::uint64_t last) {
  Findings findings;
  bool confirmed = false;
  while (true) {
    poll_or_sleep(self);
    bool done = !self.arrived.empty() && self.arrived.back()->tag() == last;
    for (const auto& reader : self.arrived) {
      if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
      reader->read(SIZE_MAX, findings);
      done = done && reader->done();
    }
    if (!done || confirmed) continue;
    for (const auto& reader : self.arrived) reader->verify(findings);
    confirmed = true;
    self.channel(0).post(make_header(findings.empty() ? 1 : 2, 0), {});
  }
}

TEST(shm_process, a_stopped_reader_blocks_its_own_messages_only) {
  constexpr std::uint64_t kLast = 400;
  TemporaryDirectory directory;
  PeerProcess peer([&] { return make_shm_transport(shm_options(1, directory.path())); },
                   [](Rank& self) { read_all(self, kLast); });
  World world = make_world(directory.path(), peer);
  Rank self(world, 0);
  Rank other(world, 2);
  Findings findings;
  std::vector<Sending> sendings;
  sendings.push_back(self.send(1, 0, 100));
  while (!sendings[0].done()) poll_or_sleep(self);
  peer.signal(SIGSTOP);
  for (std::uint64_t tag = 1; tag <= kLast; ++tag) {
    sendings.push_back(self.send(1, tag, tag % 5 == 0 ? 700'000 : 3000));
  }
  const Sending unharmed = self.send(2, 1000, 5 << 20);
  const auto deadline = Clock::now() + kDeadline;
  while (!unharmed.done() && Clock::now() < deadline) {
    self.poll();
    other.poll();
    for (const auto& reader : other.arrived) {
      if (!reader->accepted()) reader->accept(Reader::Mode::kViews);
      reader->read(SIZE_MAX, findings);
    }
  }
  CHECK(unharmed.done());
  CHECK(!sendings.back().done());
  peer.signal(SIGCONT);
  while (!self.find(1) && Clock::now() < deadline) poll_or_sleep(self);
  CHECK(self.find(1) != nullptr);
  CHECK(std::all_of(sendings.begin(), sendings.end(),
                    [](const Sending& sending) { return sending.done(); }));
  CHECK(findings.empty() && self.lost.empty());
}

TEST(shm_process, a_forked_child_keeps_no_link_open) {
  TemporaryDirectory directory;
  World world;
  for (const int rank : {0, 1}) {
    world.transports.push_back(make_shm_transport(shm_options(rank, directory.path())));
  }
  connect(world);
  Rank rank0(world, 0);
  Rank rank1(world, 1);
  const auto sending = std::make_unique<Sending>(rank0.send(1, 1, 1 << 20));
  const auto deadline = Clock::now() + kDeadline;
  while (!rank1.find(1) && Clock::now() < deadline) {
    rank0.poll();
    rank1.poll();
  }
  REQUIRE(rank1.find(1) != nullptr);
  const std::string offer = world.transports[0]->offer();
  int freed[2];
  REQUIRE(pipe(freed) == 0);
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    for (const auto& transport : world.transports) transport->abandon_after_fork();
    sending->message.reset();
    world.transports.clear();
    rank1.arrived.clear();
    static_cast<void>(!write(freed[1], "x", 1));
    pause();
    _exit(0);
  }
  char byte = 0;
  CHECK_EQ(read(freed[0], &byte, 1), 1);
  close(freed[0]);
  close(freed[1]);
  CHECK_EQ(access(offer.c_str(), F_OK), 0);
  // Memory that the child has freed is still valid in this process.
  Findings findings;
  Reader& reader = *rank1.find(1);
  reader.accept(Reader::Mode::kViews);
  while (!reader.done() && Clock::now() < deadline) {
    rank0.poll();
    rank1.poll();
    reader.read(SIZE_MAX, findings);
  }
  reader.verify(findings);
  CHECK(findings.empty());
  rank0.free_transport();
  while (rank1.lost.empty() && Clock::now() < deadline) poll_or_sleep(rank1);
  CHECK(!rank1.lost.empty());
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

}  // namespace
}  // namespace bluecomm::test
