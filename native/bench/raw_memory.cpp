// The operations with which `python -m bluecomm.bench` measures the lower bounds on one
// machine. bluecomm/bench/limit.py calls them on the program's thread, on all ranks at
// once; the ranks meet at a futex barrier in the shared file.
#include "bench/raw_memory.h"

#include <sys/mman.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <system_error>
#include <thread>

namespace bluecomm {
namespace {

constexpr std::size_t kPage = 4096;

// Up to these sizes, reading from slots is faster than reading in place, as measured on
// 2 cores with a spinning and a sleeping barrier. An in-place allreduce is faster with
// slots up to kSlotBytes.
constexpr std::size_t kSmallPassSpinning = 1 << 10;
constexpr std::size_t kSmallPassSleeping = 16 << 10;

std::size_t whole_pages(std::size_t nbytes) {
  return (nbytes + kPage - 1) / kPage * kPage;
}

// Returns the number of spins before a waiter sleeps (about 50 us), or 0 if there are
// more ranks than cores.
int spins_of(int world_size) {
  return static_cast<unsigned>(world_size) <= std::thread::hardware_concurrency() ? 1000
                                                                                  : 0;
}

std::span<std::byte> map_file(int fd, std::size_t nbytes) {
  struct stat info;
  if (fstat(fd, &info) != 0) {
    throw std::system_error(errno, std::generic_category(), "raw memory: fstat");
  }
  if (static_cast<std::size_t>(info.st_size) != nbytes) {
    throw std::invalid_argument("raw memory: expected a file of " +
                                std::to_string(nbytes) + " bytes, got " +
                                std::to_string(info.st_size));
  }
  void* const start =
      mmap(nullptr, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, fd, 0);
  if (start == MAP_FAILED) {
    throw std::system_error(errno, std::generic_category(), "raw memory: mmap");
  }
  return {static_cast<std::byte*>(start), nbytes};
}

}  // namespace

std::size_t RawMemory::file_bytes(int world_size, std::size_t array_bytes) {
  const auto ranks = static_cast<std::size_t>(world_size);
  return whole_pages(sizeof(Control)) +
         ranks * (2 * kSlotBytes + whole_pages(array_bytes));
}

RawMemory::RawMemory(int fd, int rank, int world_size, std::size_t array_bytes)
    : rank_(rank),
      world_size_(world_size),
      array_bytes_(array_bytes),
      spins_(spins_of(world_size)),
      small_pass_(spins_ > 0 ? kSmallPassSpinning : kSmallPassSleeping) {
  if (world_size < 1) {
    throw std::invalid_argument("raw memory: expected at least 1 rank, got " +
                                std::to_string(world_size));
  }
  require_rank(rank);
  file_ = map_file(fd, file_bytes(world_size, array_bytes));
  control_ = reinterpret_cast<Control*>(file_.data());
}

RawMemory::~RawMemory() { munmap(file_.data(), file_.size()); }

void RawMemory::allreduce(std::size_t nbytes, DType dtype, Deadline deadline) {
  require_fit(nbytes);
  publish(nbytes, nbytes <= kSlotBytes, deadline);
  if (in_slots_) {
    terms_.clear();
    for (int r = 0; r < world_size_; ++r) terms_.push_back({readable(r), 1.0});
    combine_weighted(array().first(nbytes), terms_, 1.0, dtype);
  } else {
    allreduce_slices(nbytes, dtype, deadline);
  }
  retract(deadline);
}

void RawMemory::allreduce_slices(std::size_t nbytes, DType dtype, Deadline deadline) {
  const std::size_t item = item_size(dtype);
  // Slices are whole cache lines, so that no two ranks write to the same line.
  const auto start_of = [&](int slice) {
    const std::size_t lines = nbytes / 64;
    const auto ranks = static_cast<std::size_t>(world_size_);
    return slice == world_size_ ? nbytes / item * item
                                : lines * static_cast<std::size_t>(slice) / ranks * 64;
  };
  const std::size_t start = start_of(rank_);
  terms_.clear();
  for (int r = 0; r < world_size_; ++r) {
    terms_.push_back({array_of(r).data() + start, 1.0});
  }
  combine_weighted(array().subspan(start, start_of(rank_ + 1) - start), terms_, 1.0,
                   dtype);
  barrier(deadline);
  for (int i = 1; i < world_size_; ++i) {
    const int other = (rank_ + i) % world_size_;
    const std::size_t from = start_of(other);
    std::memcpy(array().data() + from, array_of(other).data() + from,
                start_of(other + 1) - from);
  }
}

void RawMemory::combine(std::span<std::byte> output,
                        std::span<const WeightedRank> sources, DType dtype,
                        Deadline deadline) {
  require_fit(output.size());
  for (const WeightedRank& source : sources) require_rank(source.rank);
  publish(output.size(), output.size() <= small_pass_, deadline);
  terms_.clear();
  for (const WeightedRank& source : sources) {
    terms_.push_back({readable(source.rank), source.weight});
  }
  combine_weighted(output, terms_, 1.0, dtype);
  retract(deadline);
}

void RawMemory::gather(std::span<std::byte> output, std::span<const ArrayRange> pieces,
                       std::size_t published, std::size_t largest, Deadline deadline) {
  require_fit(largest);
  std::size_t total = 0;
  for (const ArrayRange& piece : pieces) {
    require_rank(piece.rank);
    require_fit(piece.offset + piece.nbytes);
    total += piece.nbytes;
  }
  if (published > largest || total != output.size()) {
    throw std::invalid_argument("raw memory: got pieces of " + std::to_string(total) +
                                " bytes for an output of " +
                                std::to_string(output.size()) + ", and " +
                                std::to_string(published) + " of " +
                                std::to_string(largest) + " bytes were published");
  }
  publish(published, largest <= small_pass_, deadline);
  std::byte* next = output.data();
  for (const ArrayRange& piece : pieces) {
    std::memcpy(next, readable(piece.rank) + piece.offset, piece.nbytes);
    next += piece.nbytes;
  }
  retract(deadline);
}

void RawMemory::publish(std::size_t published, bool in_slots, Deadline deadline) {
  in_slots_ = in_slots;
  if (in_slots_) {
    // The last readers of this set have passed the barrier of the previous operation.
    slot_set_ = 1 - slot_set_;
    std::memcpy(slot_of(rank_).data(), array().data(), published);
  }
  barrier(deadline);
}

void RawMemory::retract(Deadline deadline) {
  if (!in_slots_) barrier(deadline);
}

const std::byte* RawMemory::readable(int rank) const {
  return in_slots_ ? slot_of(rank).data() : array_of(rank).data();
}

std::span<std::byte> RawMemory::slot_of(int rank) const {
  const auto index = static_cast<std::size_t>(slot_set_ * world_size_ + rank);
  return file_.subspan(whole_pages(sizeof(Control)) + index * kSlotBytes, kSlotBytes);
}

std::span<std::byte> RawMemory::array_of(int rank) const {
  const std::size_t slots = 2 * kSlotBytes * static_cast<std::size_t>(world_size_);
  const std::size_t start = whole_pages(sizeof(Control)) + slots;
  return file_.subspan(
      start + static_cast<std::size_t>(rank) * whole_pages(array_bytes_), array_bytes_);
}

void RawMemory::barrier(Deadline deadline) {
  const int missing = control_->barrier.wait(world_size_, spins_, deadline);
  if (missing == 0) return;
  throw std::runtime_error("raw memory on rank " + std::to_string(rank_) + ": " +
                           std::to_string(missing) + " of " +
                           std::to_string(world_size_) +
                           " ranks did not reach the barrier in time");
}

void RawMemory::require_rank(int rank) const {
  if (rank >= 0 && rank < world_size_) return;
  throw std::invalid_argument("raw memory: rank must be in 0 .. " +
                              std::to_string(world_size_ - 1) + ", got " +
                              std::to_string(rank));
}

void RawMemory::require_fit(std::size_t nbytes) const {
  if (nbytes <= array_bytes_) return;
  throw std::invalid_argument("raw memory: " + std::to_string(nbytes) +
                              " bytes do not fit an array of " +
                              std::to_string(array_bytes_));
}

}  // namespace bluecomm
