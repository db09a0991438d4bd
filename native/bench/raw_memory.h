// Operations over shared memory without an engine: a lower bound for benchmarks.
//
// Each rank has an array in one mapping that all ranks of the machine share. Messages
// are not matched and failures are not reported: all ranks must call the same operation
// at the same time. This is the least work with which an operation can be done.
//
// A rank copies a small array into a slot that all others read, which takes one barrier
// (two sets of slots alternate). Larger arrays are read in place, between two barriers.
// The limit between small and large depends on the cost of a barrier.
#pragma once

#include <chrono>
#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "bench/futex_barrier.h"
#include "common/dtype.h"
#include "kernels/combine.h"

namespace bluecomm {

class RawMemory {
 public:
  // One source of combine().
  struct WeightedRank {
    int rank;
    double weight;
  };
  // A part of a rank's array, for gather().
  struct ArrayRange {
    int rank;
    std::size_t offset;
    std::size_t nbytes;
  };
  using Deadline = std::chrono::steady_clock::time_point;

  // Returns the size of the file that the ranks map.
  static std::size_t file_bytes(int world_size, std::size_t array_bytes);

  // Maps `fd`, a zeroed file of file_bytes() bytes, which the caller keeps and closes.
  // Throws std::invalid_argument if the file has another size, and std::system_error if
  // it cannot be mapped.
  RawMemory(int fd, int rank, int world_size, std::size_t array_bytes);
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;
  ~RawMemory();

  // This rank's array.
  std::span<std::byte> array() const { return array_of(rank_); }

  // The operations throw std::runtime_error if a rank does not reach the barrier before
  // the deadline, and std::invalid_argument if a range does not fit the arrays.

  // Replaces the first `nbytes` of each array by the sum over all ranks: every rank
  // adds its slice directly from the others' memory, then copies the other slices.
  void allreduce(std::size_t nbytes, DType dtype, Deadline deadline);

  // Writes the weighted sum of the sources to `output` in one pass. `sources` are in
  // ascending order of rank; `output` must not lie in the shared arrays.
  void combine(std::span<std::byte> output, std::span<const WeightedRank> sources,
               DType dtype, Deadline deadline);

  // Writes the pieces to `output`, one after the other. `published` is the number of
  // bytes of this rank's array that other ranks read, and `largest` is the maximum of
  // `published` over all ranks. `output` must not lie in the shared arrays.
  void gather(std::span<std::byte> output, std::span<const ArrayRange> pieces,
              std::size_t published, std::size_t largest, Deadline deadline);

 private:
  static constexpr std::size_t kSlotBytes = 64 << 10;

  // At the start of the file, in shared memory.
  struct Control {
    FutexBarrier barrier;
  };

  std::span<std::byte> array_of(int rank) const;
  std::span<std::byte> slot_of(int rank) const;
  void barrier(Deadline deadline);
  // Between publish() and retract() the ranks' data may be read through readable().
  void publish(std::size_t published, bool in_slots, Deadline deadline);
  void retract(Deadline deadline);
  const std::byte* readable(int rank) const;
  void require_rank(int rank) const;
  void require_fit(std::size_t nbytes) const;
  void allreduce_slices(std::size_t nbytes, DType dtype, Deadline deadline);

  const int rank_;
  const int world_size_;
  const std::size_t array_bytes_;
  const int spins_;
  const std::size_t small_pass_;  // largest size for which a pass reads slots
  std::span<std::byte> file_;
  Control* control_ = nullptr;
  int slot_set_ = 0;
  bool in_slots_ = false;
  std::vector<Term> terms_;
};

}  // namespace bluecomm
