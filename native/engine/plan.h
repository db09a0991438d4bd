#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/gate.h"
#include "kernels/combine.h"

// The plan of an operation: what it does, as data.
//
// A collective is a pure function from a rank's call to a Plan: a sequence of
// phases, each with messages to send and destinations to fill. The executor
// (engine/operation.h) runs any plan over any transport, and the simulator in the tests
// runs all ranks' plans against each other in memory. So a collective is one file that
// reads like a textbook and knows no transport, and only one state machine has to be
// correct.
//
// Rules
// - The message of phase p with slot s from rank a to rank b is Send{b, s} in phase p
//   of a's plan and Source{a, s} in phase p of b's; both name the same length.
// - A phase ends when its gathers are filled and its sends are released. Sends that
//   `linger` are an exception: they may be read until the operation ends. So a later
//   phase may overwrite memory that an earlier phase has sent, unless that send
//   lingers.
// - A gather may overwrite memory that the same phase or a lingering send of an earlier
//   phase sends only if `overwrites_sent` is set. A chunk that is still being read is
//   then combined into scratch memory and written back after its release. A gather
//   whose only source is its own `dst` overwrites nothing.
// - A gather may have a Source without a peer: this rank's own memory. That memory is
//   exactly the gather's `dst`, or does not overlap any `dst` of the phase.
// - The `dst` of a phase do not overlap one another.
// - Of overlapping phases, each one that `overlaps` begins while those before it run. A
//   prefix of its sends, and of its sources in own memory, is ready once the gathers of
//   the earlier phases have written it; a range is written by the gathers of successive
//   phases in their order. Its gathers may write memory that earlier phases send only
//   if they set `follows_reads`. It has neither `prepare` nor `bind`.

namespace bluecomm {

inline constexpr int kSelf = -1;

struct Send {
  int peer;  // global rank
  std::uint32_t slot;
  std::span<const std::byte> bytes;
  double scale = 1.0;  // sent in the header; the receiver multiplies it in
  // Number of rows in `bytes`, sent in the header and passed on as Arrival::first_dim.
  // 0 unless the receiver's phase has a `bind`.
  std::int64_t first_dim = 0;
  // The phase ends without waiting until this has been read.
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
  // The peer computes each byte of its message from data that include the bytes of this
  // rank which that byte overwrites. So when it arrives, those have been read.
  bool follows_reads = false;
  // Copy past the caches, because the data would be evicted before it is read.
  bool past_caches = false;
};

// The length and first dimension that a source has announced. There is one for each
// source with a peer, in the order of gathers and their sources.
struct Arrival {
  int peer;
  std::uint32_t slot;
  std::size_t nbytes;
  std::int64_t first_dim;
};

struct Phase {
  // Computes the data that this phase sends from the results of earlier phases. Called
  // once, when the phase begins. Throws std::invalid_argument if the ranks' calls do
  // not suit one another.
  std::function<void()> prepare;
  std::vector<Send> sends;
  std::vector<Gather> gathers;
  // For results whose size only the senders know. Called exactly once, when all headers
  // of the phase have arrived (immediately if none is awaited) and before any payload
  // is accepted. Sets the gathers' `dst` to Call::outputs, or to memory that it
  // allocates with Call::allocate.
  // Throws std::invalid_argument for an invalid announcement. If `bind` is empty, the
  // announced lengths must equal those of `dst`.
  std::function<void(std::span<const Arrival> arrivals, std::vector<Gather>& gathers)>
      bind;
  // The phase does not end before this has opened, if it is set. The gate's failure is
  // that of the operation.
  std::shared_ptr<Gate> gate;
  // Begins while the phases before it run; see the rules.
  bool overlaps = false;
};

// The algorithm by which a collective was divided into phases. Part of the fingerprint
// in the envelope: append, never renumber.
enum class Algorithm : std::uint8_t {
  kFlat = 0,          // each member to all its receivers, in one phase
  kDoubling = 1,      // recursive doubling
  kDirect = 2,        // reduce-scatter and all-gather, one phase each
  kRing = 3,          // reduce-scatter and all-gather around a ring
  kHierarchical = 4,  // inside the machines, between them, inside again
  kTree = 5,          // binomial tree
  kScatter = 6,       // scatter and all-gather
  kBlocks = 7,        // the phases of kDirect for one block after another
  kTicket = 8,        // for the library of a device, which carries out the call
};

// The rank that was the last to call the operation. A rank that gets messages of one
// rank only learns from that rank who was the last.
struct LastCaller {
  // The last rank whose first message has come while the operation ran; this rank if
  // there is none. The executor sets it.
  int heard = -1;
  // The last rank, as another rank says; -1 if it is this rank. Set by `prepare`.
  std::optional<int> told = std::nullopt;
};

struct Plan {
  Algorithm algorithm = Algorithm::kFlat;
  std::vector<Phase> phases;
  // Memory owned by the plan, which phases may use like the caller's.
  std::shared_ptr<std::byte[]> scratch;
  std::size_t scratch_nbytes = 0;
  // Null if each rank hears from all others.
  std::shared_ptr<LastCaller> last_caller;
};

}  // namespace bluecomm
