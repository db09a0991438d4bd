#pragma once

#include <cstddef>

namespace bluecomm {

// Thresholds between the algorithms. They must be the same on all ranks.
struct Tuning {
  // Flat: each member sends its whole tensor to all others, in one step with n - 1
  // messages. It is fastest while each message travels with its header (4096 bytes is
  // the usual eager limit) and a rank writes its n - 1 headers in less time than a
  // second step takes.
  std::size_t flat_bytes = 4096;
  int flat_members = 8;

  // On one machine, flat is fastest up to this size of all tensors together: each
  // member reads the others' tensors in place, which costs less than a second step.
  std::size_t flat_memory_bytes = 128 << 10;

  // Recursive doubling moves the whole tensor log2(n) times. Up to this size a step (a
  // wake-up, a round trip) costs more than moving the bytes.
  std::size_t doubling_bytes = 32 << 10;

  // Direct: reduce-scatter and all-gather in one phase each. Every byte is moved twice,
  // which is the minimum, and slices are read in place. Each rank has n - 1 messages in
  // each direction at the same time. With more members than this, messages would be too
  // short and sockets too numerous, so a ring (2 links per rank, 2 (n - 1) steps) is
  // used.
  int direct_members = 16;

  // On one machine, longer tensors are reduced in blocks of at most this size, so that
  // data that ranks copy for each other is still in the caches when it is read. Smaller
  // blocks would cost more in waiting than they save.
  std::size_t block_bytes = 4 << 20;

  // A result of at least this size that is not computed in place does not fit into the
  // caches, so its copied parts bypass them: an ordinary store would first read the
  // memory that it overwrites.
  std::size_t past_caches_bytes = 32 << 20;

  // Between machines, messages that arrive from all members at the same time share each
  // link, and the last message of a phase delays the next phase. When slices take
  // longer than the steps of a ring, sending one message at a time uses the links
  // better.
  std::size_t ring_slice_bytes = 64 << 10;

  // The root of a reduction reads the tensors of all members itself, in one step.
  // Longer tensors are reduced slice by slice, by all members, before the root collects
  // them.
  std::size_t reduce_flat_bytes = 64 << 10;

  // The root sends its tensor to each member itself, in one step; on one machine all
  // members read its memory. With more members than this, its link is the bottleneck.
  int broadcast_flat_members = 4;

  // A binomial tree moves the whole tensor log2(n) times. From this size on, scatter
  // and all-gather is used, in which each link carries each byte about once.
  std::size_t broadcast_scatter_bytes = 64 << 10;
};

}  // namespace bluecomm
