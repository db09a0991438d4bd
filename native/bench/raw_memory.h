// What the memory of one machine allows: operations without an engine.
//
// Each rank has an array in one mapping that all ranks of the machine share. Nothing is
// matched, no failure is told to anybody, all ranks must call the same at the same
// time: this is the least that an operation must do, for benchmarks to compare with.
//
// A small array is copied into a slot that all others read, which takes one barrier
// (two sets of slots take turns). Larger arrays are read where they lie, between
// barriers. What is small depends on what a barrier costs.
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
  // Of an operation: who is read and with which weight, in ascending order of rank.
  struct WeightedRank {
    int rank;
    double weight;
  };
  // Of a gather: a part of a rank's array.
  struct Piece {
    int rank;
    std::size_t offset;
    std::size_t nbytes;
  };
  using Deadline = std::chrono::steady_clock::time_point;

  // Bytes of the file that the ranks map.
  static std::size_t file_bytes(int world_size, std::size_t array_bytes);

  // Maps `fd`, a zeroed file of file_bytes(); it stays the caller's. Throws
  // std::invalid_argument for another size, std::system_error when it cannot be mapped.
  RawMemory(int fd, int rank, int world_size, std::size_t array_bytes);
  RawMemory(const RawMemory&) = delete;
  RawMemory& operator=(const RawMemory&) = delete;
  ~RawMemory();

  // This rank's array.
  std::span<std::byte> array() const { return array_of(rank_); }

  // All throw std::runtime_error when some ranks do not come before the deadline, and
  // std::invalid_argument when a range does not fit the arrays.

  // The first `nbytes` of each array become the sum of all: every rank adds its slice
  // straight from the others' memory, then copies the other slices.
  void allreduce(std::size_t nbytes, DType dtype, Deadline deadline);

  // `output`, which is no array, becomes the weighted sum of the sources: one pass.
  void combine(std::span<std::byte> output, std::span<const WeightedRank> sources,
               DType dtype, Deadline deadline);

  // `output`, which is no array, becomes the pieces, one after the other. `published`
  // is how many bytes of this rank's array anybody reads, 0 if nobody does. `largest`
  // is the most that any rank publishes.
  void gather(std::span<std::byte> output, std::span<const Piece> pieces,
              std::size_t published, std::size_t largest, Deadline deadline);

 private:
  static constexpr std::size_t kSlotBytes = 64 << 10;

  // In shared memory, at the start of the file.
  struct Control {
    FutexBarrier barrier;
  };

  std::span<std::byte> array_of(int rank) const;
  std::span<std::byte> slot_of(int rank) const;
  void barrier(Deadline deadline);
  // Between these two the sources of an operation may be read with readable().
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
  const std::size_t small_pass_;  // up to here a pass reads from slots
  std::span<std::byte> file_;
  Control* control_ = nullptr;
  int slot_set_ = 0;
  bool in_slots_ = false;
  std::vector<Term> terms_;
};

}  // namespace bluecomm
