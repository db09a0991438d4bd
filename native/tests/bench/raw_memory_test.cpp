#include "bench/raw_memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <thread>
#include <vector>

#include "common/fd.h"
#include "tests/check.h"

namespace bluecomm {
namespace {

UniqueFd make_file(std::size_t nbytes) {
  UniqueFd fd(memfd_create("raw-memory-test", MFD_CLOEXEC));
  CHECK_EQ(ftruncate(fd.get(), static_cast<off_t>(nbytes)), 0);
  return fd;
}

RawMemory::Deadline soon() {
  return std::chrono::steady_clock::now() + test::kDeadline;
}

// Runs `body` for each rank in a thread of its own, each with its own mapping.
void on_ranks(int world_size, std::size_t array_bytes,
              const std::function<void(int rank, RawMemory&)>& body) {
  const UniqueFd fd = make_file(RawMemory::file_bytes(world_size, array_bytes));
  std::vector<std::unique_ptr<RawMemory>> memories;
  for (int r = 0; r < world_size; ++r) {
    memories.push_back(
        std::make_unique<RawMemory>(fd.get(), r, world_size, array_bytes));
  }
  std::vector<std::thread> ranks;
  for (int r = 0; r < world_size; ++r) {
    ranks.emplace_back([&, r] {
      try {
        body(r, *memories[static_cast<std::size_t>(r)]);
      } catch (const std::exception& error) {
        test::record_failure(__FILE__, __LINE__, error.what());
      }
    });
  }
  for (std::thread& rank : ranks) rank.join();
}

// Small whole numbers, so that sums are exact; they differ between ranks and elements.
float value(int rank, std::size_t i) {
  return static_cast<float>((i * 7 + static_cast<std::size_t>(rank) * 13) % 101);
}

float* floats(std::span<std::byte> bytes) {
  return reinterpret_cast<float*>(bytes.data());
}

void fill(RawMemory& memory, int rank, std::size_t count) {
  for (std::size_t i = 0; i < count; ++i) floats(memory.array())[i] = value(rank, i);
}

// Sizes that use slots and sizes that are read in place: one item, uneven slices, fewer
// cache lines than ranks.
const std::vector<std::size_t> kCounts = {1,    19,    256,   257,    4096,
                                          4097, 16384, 16385, 100'003};

TEST(raw_memory, allreduce_is_the_sum_over_all_ranks) {
  for (const int n : {1, 2, 3, 4, 5}) {
    for (const std::size_t count : kCounts) {
      on_ranks(n, count * 4, [&](int rank, RawMemory& memory) {
        for (int repeat = 0; repeat < 3; ++repeat) {
          fill(memory, rank, count);
          memory.allreduce(count * 4, DType::kFloat32, soon());
          for (std::size_t i = 0; i < count; ++i) {
            float expected = 0;
            for (int r = 0; r < n; ++r) expected += value(r, i);
            if (floats(memory.array())[i] != expected) {
              CHECK_EQ(floats(memory.array())[i], expected);
              return;
            }
          }
        }
      });
    }
  }
}

TEST(raw_memory, combine_is_the_weighted_sum_of_the_sources) {
  for (const std::size_t count : kCounts) {
    on_ranks(4, count * 4, [&](int rank, RawMemory& memory) {
      const int other = (rank + 1) % 4;
      std::vector<RawMemory::WeightedRank> sources = {{rank, 0.5}, {other, 0.25}};
      std::vector<float> output(count);
      for (int repeat = 0; repeat < 3; ++repeat) {
        fill(memory, rank, count);
        memory.combine(std::as_writable_bytes(std::span(output)), sources,
                       DType::kFloat32, soon());
        for (std::size_t i = 0; i < count; ++i) {
          const float expected = 0.5f * value(rank, i) + 0.25f * value(other, i);
          if (output[i] != expected) {
            CHECK_EQ(output[i], expected);
            return;
          }
        }
      }
    });
  }
}

TEST(raw_memory, gather_concatenates_the_pieces) {
  for (const std::size_t count : kCounts) {
    on_ranks(3, count * 4, [&](int rank, RawMemory& memory) {
      fill(memory, rank, count);
      // No rank reads rank 1.
      const std::vector<RawMemory::ArrayRange> pieces = {{2, 0, count * 4},
                                                         {0, (count - 1) * 4, 4}};
      std::vector<float> output(count + 1);
      memory.gather(std::as_writable_bytes(std::span(output)), pieces,
                    rank == 1 ? 0 : count * 4, count * 4, soon());
      for (std::size_t i = 0; i < count; ++i) {
        if (output[i] != value(2, i)) {
          CHECK_EQ(output[i], value(2, i));
          return;
        }
      }
      CHECK_EQ(output[count], value(0, count - 1));
    });
  }
}

TEST(raw_memory, a_missing_rank_ends_the_wait) {
  const UniqueFd fd = make_file(RawMemory::file_bytes(3, 400));
  RawMemory memory(fd.get(), 1, 3, 400);
  const auto deadline =
      std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  CHECK_THROWS(memory.allreduce(400, DType::kFloat32, deadline), std::runtime_error,
               "on rank 1: 2 of 3 ranks did not reach the barrier in time");
}

TEST(raw_memory, rejects_ranges_that_do_not_fit) {
  using Error = std::invalid_argument;
  const UniqueFd fd = make_file(RawMemory::file_bytes(2, 400));
  CHECK_THROWS(RawMemory(fd.get(), 0, 2, 1 << 20), Error, "expected a file of");
  CHECK_THROWS(RawMemory(fd.get(), 2, 2, 400), Error, "must be in 0 .. 1, got 2");
  CHECK_THROWS(RawMemory(fd.get(), 0, 0, 400), Error, "at least 1 rank, got 0");
  RawMemory memory(fd.get(), 0, 2, 400);
  std::vector<std::byte> output(400);
  const std::vector<RawMemory::WeightedRank> stranger = {{2, 1.0}};
  const std::vector<RawMemory::ArrayRange> few = {{0, 0, 396}}, beyond = {{0, 4, 400}};
  CHECK_THROWS(memory.allreduce(404, DType::kFloat32, soon()), Error,
               "404 bytes do not fit an array of 400");
  CHECK_THROWS(memory.combine(output, stranger, DType::kFloat32, soon()), Error,
               "must be in 0 .. 1, got 2");
  CHECK_THROWS(memory.gather(output, few, 400, 400, soon()), Error,
               "pieces of 396 bytes for an output of 400");
  CHECK_THROWS(memory.gather(output, beyond, 400, 400, soon()), Error,
               "404 bytes do not fit an array of 400");
}

}  // namespace
}  // namespace bluecomm
