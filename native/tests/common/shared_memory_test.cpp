#include "common/shared_memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <random>
#include <thread>
#include <vector>

#include "tests/check.h"

namespace bluecomm {
namespace {

TEST(shared_memory, blocks_are_aligned_separate_and_found) {
  SharedMemory memory;
  std::vector<SharedBlock> blocks;
  for (const std::size_t nbytes :
       {0, 1, 4096, 4097, 1 << 20, (1 << 20) + 1, 100 << 20}) {
    SharedBlock block = memory.allocate(nbytes);
    CHECK_EQ(block.bytes().size(), nbytes);
    CHECK_EQ(reinterpret_cast<std::uintptr_t>(block.bytes().data()) % 4096, 0u);
    const auto location = memory.find(block.bytes());
    REQUIRE(location.has_value());
    CHECK(location->segment->bytes().data() + location->offset == block.bytes().data());
    blocks.push_back(std::move(block));
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    std::memset(blocks[i].bytes().data(), static_cast<int>(i),
                blocks[i].bytes().size());
  }
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    for (const std::byte b : blocks[i].bytes().first(
             std::min<std::size_t>(blocks[i].bytes().size(), 5000))) {
      REQUIRE(b == static_cast<std::byte>(i));
    }
  }
}

TEST(shared_memory, foreign_memory_is_not_found) {
  SharedMemory memory;
  const SharedBlock block = memory.allocate(100 << 20);
  std::vector<std::byte> heap(10);
  CHECK(!memory.find(heap));
  CHECK(!memory.find(std::span(block.bytes().data(), block.bytes().size() + 1)));
  CHECK(memory.find(block.bytes().subspan(17, 1000)));
  CHECK(!SharedMemory().find(block.bytes()));
}

TEST(shared_memory, freed_memory_is_reused) {
  SharedMemory memory;
  const SharedBlock stays = memory.allocate(2 << 20);
  std::byte* first = nullptr;
  for (int i = 0; i < 5; ++i) {
    const SharedBlock block = memory.allocate(8 << 20);
    if (i == 0) first = block.bytes().data();
    CHECK(block.bytes().data() == first);
  }
  // A small block does not use the space of the large one.
  const SharedBlock small = memory.allocate(100);
  CHECK(memory.allocate(8 << 20).bytes().data() == first);
}

TEST(shared_memory, segment_is_sealed_and_maps_the_same_bytes) {
  SharedMemory memory;
  const SharedBlock block = memory.allocate(5000);
  block.bytes()[4999] = std::byte{42};
  const auto location = memory.find(block.bytes());
  REQUIRE(location.has_value());
  const int fd = location->segment->fd();
  CHECK(ftruncate(fd, 4096) != 0);
  CHECK((fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);
  const std::size_t nbytes = location->segment->bytes().size();
  void* other = mmap(nullptr, nbytes, PROT_READ, MAP_SHARED, fd, 0);
  REQUIRE(other != MAP_FAILED);
  CHECK(static_cast<std::byte*>(other)[location->offset + 4999] == std::byte{42});
  munmap(other, nbytes);
}

TEST(shared_memory, idle_segments_are_unmapped_beyond_the_bound) {
  SharedMemory memory({.segment_bytes = 4 << 20, .keep_free_bytes = 8 << 20});
  std::vector<std::weak_ptr<const Segment>> segments;
  {
    std::vector<SharedBlock> blocks;
    for (int i = 0; i < 6; ++i) {
      blocks.push_back(memory.allocate(4 << 20));
      segments.push_back(memory.find(blocks.back().bytes())->segment);
    }
  }
  const auto alive = std::count_if(segments.begin(), segments.end(),
                                   [](const auto& s) { return !s.expired(); });
  CHECK_EQ(alive, 2);
}

TEST(shared_memory, blocks_outlive_the_allocator) {
  SharedBlock block;
  {
    SharedMemory memory;
    block = memory.allocate(10'000);
  }
  std::memset(block.bytes().data(), 1, block.bytes().size());
}

// Freed ranges merge into one, in any order of freeing.
TEST(shared_memory, free_ranges_merge) {
  SharedMemory memory({.segment_bytes = 32 << 20, .keep_free_bytes = 64 << 20});
  std::mt19937 random(1);
  const Segment* segment = nullptr;
  for (int round = 0; round < 20; ++round) {
    std::vector<SharedBlock> blocks;
    for (int i = 0; i < 10; ++i) {
      blocks.push_back(memory.allocate((1 << 20) + 1 + random() % (1 << 20)));
    }
    std::shuffle(blocks.begin(), blocks.end(), random);
    blocks.clear();
    const SharedBlock whole = memory.allocate(32 << 20);
    const auto location = memory.find(whole.bytes());
    REQUIRE(location.has_value());
    if (round == 0) segment = location->segment.get();
    CHECK(location->segment.get() == segment);
  }
}

TEST(shared_memory, threads_share_an_allocator) {
  SharedMemory memory;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&memory, t] {
      std::mt19937 random(static_cast<unsigned>(t));
      std::vector<SharedBlock> blocks(8);
      for (int i = 0; i < 300; ++i) {
        SharedBlock& block = blocks[random() % blocks.size()];
        const std::span<std::byte> old = block.bytes();
        for (const std::byte b : old) CHECK(b == static_cast<std::byte>(t));
        block = memory.allocate(random() % 20'000);
        const std::span<std::byte> bytes = block.bytes();
        std::memset(bytes.data(), t, bytes.size());
        CHECK(memory.find(bytes).has_value());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

// Runs `body` in a forked child and returns whether it returned true there.
template <typename Body>
bool holds_in_a_fork(Body&& body) {
  const pid_t child = fork();
  if (child == 0) _exit(body() ? 0 : 1);
  int status = -1;
  return child > 0 && waitpid(child, &status, 0) == child && status == 0;
}

TEST(shared_memory, a_forked_child_may_not_allocate) {
  SharedMemory memory;
  CHECK(holds_in_a_fork([&] {
    try {
      memory.allocate(1);
      return false;
    } catch (const std::logic_error&) {
      return true;
    }
  }));
}

// In the child, the lock may stay locked forever by a thread that exists in the parent
// only.
TEST(shared_memory, a_forked_child_frees_nothing) {
  SharedMemory memory({.segment_bytes = 4 << 20, .keep_free_bytes = 0});
  SharedBlock block = memory.allocate(4 << 20);
  const std::weak_ptr<const Segment> segment = memory.find(block.bytes())->segment;
  CHECK(holds_in_a_fork([&] {
    {
      const SharedBlock freed = std::move(block);
    }
    return !segment.expired();
  }));
  block = {};
  CHECK(segment.expired());
}

}  // namespace
}  // namespace bluecomm
