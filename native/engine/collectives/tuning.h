#pragma once

#include <cstddef>

namespace bluecomm {

// Where one algorithm takes over from another. Must be the same on all ranks.
struct Tuning {
  // Everyone sends its whole tensor to everyone: one step, n - 1 messages. Wins while
  // each message rides with its header (4096 bytes is the usual eager limit) and a rank
  // can write its n - 1 headers in less time than a second step takes.
  std::size_t flat_bytes = 4096;
  int flat_members = 8;

  // On one machine it wins for longer: everyone reads the others' tensors where they
  // lie, and up to this, for all tensors together, that costs less than a second step.
  std::size_t flat_memory_bytes = 128 << 10;

  // Recursive doubling moves the whole tensor log2(n) times. Up to here what a step
  // costs (a wake-up, a round trip) exceeds what the bytes cost.
  std::size_t doubling_bytes = 32 << 10;

  // Reduce-scatter and all-gather in one phase each: every byte crosses twice, the
  // least possible, and slices are read where they lie. It takes n - 1 messages at once
  // in both directions; with more members they would be short and sockets many, so a
  // ring (2 links per rank, 2 (n - 1) steps) takes over.
  int direct_members = 16;

  // On one machine, longer tensors are reduced in blocks of at most this, so that what
  // ranks copy for each other is still in the caches when it is read and its memory is
  // used again. Smaller blocks would wait for each other more often than they save.
  std::size_t block_bytes = 4 << 20;

  // From here on a result out of place does not stay in the caches, so the part of it
  // that is copied goes past them: a store would read first what it overwrites.
  std::size_t past_caches_bytes = 32 << 20;

  // Between machines, messages that come from all members at once share each link, and
  // the last of a phase keeps the next one waiting. Once slices take longer than the
  // steps of a ring cost, one message at a time keeps the links fuller.
  std::size_t ring_slice_bytes = 64 << 10;

  // A root that sends its tensor to each member itself: one step, and on one machine
  // they all read its memory. With more members its link is the bottleneck.
  int broadcast_flat_members = 4;

  // A binomial tree moves whole tensors log2(n) times; from here on each link should
  // carry each byte only about once.
  std::size_t broadcast_scatter_bytes = 64 << 10;
};

}  // namespace bluecomm
