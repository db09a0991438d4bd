#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/combine.h"

// What an operation does, as data.
//
// A collective is a pure function from (who I am, what I was given) to a Plan: phases
// that follow one another, each a set of messages to send and of destinations to fill.
// The executor (engine/operation.h) runs any plan over any transport; a test runs all
// ranks' plans against each other in memory. So a collective is one file that reads
// like its textbook form and knows no transport, and there is one state machine to get
// right.
//
// Rules
// - The message of phase p with slot s from rank a to rank b is Send{b, s} in phase p
//   of a's plan and Source{a, s} in phase p of b's; both name the same length.
// - A phase ends when its gathers are filled and its sends are released, except those
//   that `linger`: they may be read until the operation ends. So a later phase may
//   overwrite what an earlier one has sent, unless that lingers.
// - A gather may overwrite memory that the same phase sends, or that lingers from an
//   earlier one, only when `overwrites_sent` is set: then a chunk that is still read is
//   combined into scratch memory and written back once the sends have released it.
// - A gather may have a Source without peer: this rank's own memory. It may be the
//   gather's `dst` exactly; it overlaps no `dst` of the phase in any other way.
// - The `dst` of a phase do not overlap one another.
// - A phase may be empty, and a message may have no bytes; it is sent all the same, so
//   that a rank that called something else is noticed.

namespace bluecomm {

inline constexpr int kSelf = -1;

struct Send {
  int peer;  // global rank
  std::uint32_t slot;
  std::span<const std::byte> bytes;
  double scale = 1.0;  // travels in the header; the receiver multiplies it in
  // Rows that `bytes` holds; travels in the header to Arrival::first_dim. Only where
  // the receiver's phase has a `bind`, else 0.
  std::int64_t first_dim = 0;
  // The phase ends without waiting for the reader.
  bool lingers = false;
};

struct Source {
  int peer = kSelf;  // global rank, or kSelf
  std::uint32_t slot = 0;
  std::span<const std::byte> own;  // for kSelf only
  double weight = 1.0;
};

enum class Combine : std::uint8_t {
  kCopy,      // one source, unweighted
  kWeighted,  // post_scale * sum of weight * scale * source, in the order of `sources`
  kReduce,    // post_scale * `op` over weight * scale * source, in the same order
};

struct Gather {
  std::span<std::byte> dst;
  std::vector<Source> sources;
  Combine combine = Combine::kCopy;
  ReduceOp op = ReduceOp::kSum;
  double post_scale = 1.0;
  bool overwrites_sent = false;
  // A copy past the caches, as it would be driven out of them before it is read.
  bool past_caches = false;
};

// Length and first dimension that a source announced. One for each source of the phase
// that has a peer, in the order (gather, source).
struct Arrival {
  int peer;
  std::uint32_t slot;
  std::size_t nbytes;
  std::int64_t first_dim;
};

struct Phase {
  // Computes what this phase sends from what earlier ones have filled. Called once,
  // when the phase begins.
  std::function<void()> prepare;
  std::vector<Send> sends;
  std::vector<Gather> gathers;
  // For results whose size only the senders know. Called exactly once, when all headers
  // of the phase have arrived (at once if none is awaited) and before any payload is
  // accepted; takes memory from Request::allocate and sets the gathers' `dst`. Throws
  // std::invalid_argument for an announcement that makes no sense. While it is empty,
  // the announced lengths must equal dst's.
  std::function<void(std::span<const Arrival> arrivals, std::vector<Gather>& gathers)>
      bind;
};

// How a collective was cut into phases. Part of the fingerprint in the envelope:
// append, never renumber.
enum class Algorithm : std::uint8_t {
  kFlat = 0,          // everyone to everyone it must reach, one phase
  kDoubling = 1,      // recursive doubling
  kDirect = 2,        // reduce-scatter and all-gather, one phase each
  kRing = 3,          // reduce-scatter and all-gather around a ring
  kHierarchical = 4,  // inside the machines, between them, inside again
  kTree = 5,          // binomial tree
  kScatter = 6,       // scatter and all-gather
  kBlocks = 7,        // the phases of kDirect for one block after the other
};

struct Plan {
  Algorithm algorithm = Algorithm::kFlat;
  std::vector<Phase> phases;
  // Memory of the plan's own, which phases may use as the caller's.
  std::shared_ptr<std::byte[]> scratch;
  std::size_t scratch_nbytes = 0;
};

}  // namespace bluecomm
