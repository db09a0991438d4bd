// How connections of the shm transport are established, and which ones are refused.
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "tests/check.h"
#include "tests/transport/conformance.h"
#include "tests/transport/ranks.h"
#include "tests/transport/shm_support.h"
#include "transport/shm/socket.h"
#include "transport/shm/transport.h"

namespace bluecomm::test {
namespace {

// Ranks whose options are changed by `change`.
Scheme scheme_with(
    const std::string& directory,
    std::function<void(ShmOptions& options)> change = [](ShmOptions&) {}) {
  return {[=](int size) {
            World world;
            for (int rank = 0; rank < size; ++rank) {
              ShmOptions options = shm_options(rank, directory);
              change(options);
              world.transports.push_back(make_shm_transport(options));
            }
            connect(world);
            return world;
          },
          4096};
}

void exchange(Ranks& ranks, int from, int to, std::uint64_t tag) {
  const Sending sending = ranks[from].send(to, tag, 500'000);
  if (Reader* reader = ranks.await(to, tag)) ranks.read_all(*reader);
}

// Rank 1 dials rank 0, which must refuse it.
void expect_refusal(const std::function<void(ShmOptions& options)>& change,
                    const std::string& text) {
  TemporaryDirectory directory;
  Findings findings;
  Ranks ranks(scheme_with(directory.path(),
                          [&](ShmOptions& options) {
                            options.refused_timeout = 100ms;
                            if (options.rank == 1) change(options);
                          }),
              3, findings);
  const Sending sending = ranks[1].send(0, 1, 10);
  ranks.drive("refusal", [&] { return ranks[1].lost.contains(0); });
  CHECK(ranks[1].lost[0].text.find(text) != std::string::npos);
  CHECK_EQ(ranks[1].lost[0].rank, 0);
  CHECK_EQ(ranks[0].endings, 0u);
  exchange(ranks, 2, 0, 2);
  CHECK(findings.empty());
}

TEST(shm_connections, another_key_job_or_epoch_is_refused) {
  const std::string text = "it refuses this rank's connections";
  expect_refusal([](ShmOptions& options) { options.secret[0] = std::byte{8}; }, text);
  expect_refusal([](ShmOptions& options) { options.secret.clear(); }, text);
  expect_refusal([](ShmOptions& options) { options.job = "other"; }, text);
  expect_refusal([](ShmOptions& options) { options.epoch = 4; }, text);
  expect_refusal([](ShmOptions& options) { options.rank = 77; }, text);
  expect_refusal([](ShmOptions& options) { options.rank = 0; }, text);
}

TEST(shm_connections, a_rank_that_is_already_connected_is_refused) {
  TemporaryDirectory directory;
  Findings findings;
  Ranks ranks(scheme_with(directory.path()), 2, findings);
  exchange(ranks, 1, 0, 1);
  // Stands for a second process as rank 1, though it is the same process.
  auto second = make_shm_transport(shm_options(1, directory.path()));
  World world;
  world.transports.resize(1);
  world.transports.push_back(std::move(second));
  world.channels.assign(2, std::vector<Channel*>(2, nullptr));
  world.channels[1][0] = &world.transports[1]->channel(0, ranks[0].transport().offer());
  Rank impostor(world, 1);
  const Sending sending = impostor.send(0, 2, 10);
  ranks.spin("refusal", [&] {
    impostor.poll();
    return impostor.lost.contains(0);
  });
  const std::string pid = std::to_string(getpid());
  CHECK(impostor.lost[0].text.find("already connected to process " + pid +
                                   " as rank 1") != std::string::npos);
  exchange(ranks, 0, 1, 3);
  CHECK(findings.empty());
}

TEST(shm_connections, a_peer_that_has_gone_cannot_be_dialled) {
  TemporaryDirectory directory;
  Findings findings;
  Ranks ranks(scheme_with(directory.path()), 2, findings);
  ranks[0].free_transport();
  const Sending sending = ranks[1].send(0, 1, 10);
  ranks.drive("loss", [&] { return ranks[1].lost.contains(0); });
  CHECK(ranks[1].lost[0].text.find("has its process ended?") != std::string::npos);
  CHECK_EQ(sending.message->released(), 0u);
}

TEST(shm_connections, strangers_disturb_nobody) {
  TemporaryDirectory directory;
  Findings findings;
  Ranks ranks(scheme_with(directory.path()), 3, findings);
  exchange(ranks, 0, 1, 1);
  std::mt19937 random(9);
  std::vector<UniqueFd> strangers;
  for (int i = 0; i < 200; ++i) {
    UniqueFd fd = shm::connect_to(ranks[0].transport().offer());
    if (!fd) continue;
    std::vector<std::byte> garbage(random() % 300);
    for (std::byte& b : garbage) b = static_cast<std::byte>(random());
    // Some strangers say nothing, some send garbage, and some send file descriptors.
    if (i % 3 == 1 && !garbage.empty()) shm::send_packet(fd.get(), garbage);
    if (i % 3 == 2) shm::send_packet(fd.get(), garbage, {0, 1, 2});
    strangers.push_back(std::move(fd));
    ranks[0].poll();
  }
  CHECK(strangers.size() > 100);
  exchange(ranks, 2, 0, 2);
  exchange(ranks, 1, 0, 3);
  CHECK_EQ(ranks[0].endings, 0u);
  CHECK(findings.empty());
}

TEST(shm_connections, half_open_connections_end) {
  TemporaryDirectory directory;
  Findings findings;
  Ranks ranks(
      scheme_with(directory.path(),
                  [](ShmOptions& options) { options.handshake_timeout = 30ms; }),
      1, findings);
  const UniqueFd fd = shm::connect_to(ranks[0].transport().offer());
  ranks.drive("end of a half-open connection", [&] {
    return shm::receive_packet(fd.get()).state == shm::Packet::State::kEnded;
  });
  CHECK(findings.empty());
}

TEST(shm_connections, long_directories_work_and_are_left_empty) {
  TemporaryDirectory directory;
  std::string path = directory.path();
  for (int i = 0; i < 8; ++i)
    path += "/a-directory-of-30-characters-" + std::to_string(i);
  std::filesystem::create_directories(path);
  {
    Findings findings;
    Ranks ranks(scheme_with(path), 2, findings);
    exchange(ranks, 0, 1, 1);
    CHECK(findings.empty());
    CHECK(!std::filesystem::is_empty(path));
  }
  CHECK(std::filesystem::is_empty(path));
}

TEST(shm_connections, invalid_options_are_errors) {
  TemporaryDirectory directory;
  ShmOptions options = shm_options(0, directory.path());
  options.eager_bytes = 1 << 20;
  CHECK_THROWS(make_shm_transport(options), std::invalid_argument, "eager_bytes");
  options = shm_options(0, directory.path());
  options.memory = nullptr;
  CHECK_THROWS(make_shm_transport(options), std::invalid_argument, "allocator");
  CHECK_THROWS(make_shm_transport(shm_options(0, directory.path() + "/none")),
               std::system_error, "cannot listen");
}

std::size_t count_mappings() {
  std::ifstream maps("/proc/self/maps");
  std::string line;
  std::size_t count = 0;
  while (std::getline(maps, line)) count += line.find("memfd:bluecomm") != line.npos;
  return count;
}

TEST(shm_connections, freed_segments_are_unmapped_by_the_peer) {
  TemporaryDirectory directory;
  const auto memory = std::make_shared<SharedMemory>(
      SharedMemory::Sizes{.segment_bytes = 4 << 20, .keep_free_bytes = 0});
  Findings findings;
  Ranks ranks(scheme_with(directory.path(),
                          [&](ShmOptions& options) { options.memory = memory; }),
              2, findings);
  std::size_t before = 0;
  for (std::uint64_t i = 0; i < 40; ++i) {
    SharedBlock block = memory->allocate(5 << 20);
    fill(block.bytes().first(100'000), i);
    const auto sending =
        ranks[0].channel(1).send(make_header(i, 0), block.bytes().first(100'000));
    Reader* reader = ranks.await(1, i);
    REQUIRE(reader != nullptr);
    ranks.read_all(*reader);
    ranks.drive("release", [&] { return sending->released() == 100'000; });
    ranks[1].arrived.clear();
    if (i == 5) before = count_mappings();
  }
  CHECK(count_mappings() <= before + 1);
  CHECK(findings.empty());
}

}  // namespace
}  // namespace bluecomm::test
