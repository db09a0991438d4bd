#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/dtype.h"
#include "engine/describe.h"
#include "engine/pending_sends.h"
#include "engine/plan.h"
#include "kernels/combine.h"
#include "transport/channel.h"

namespace bluecomm {

// Fills the destination of one gather while the bytes of its sources arrive.
//
// It repeatedly combines the longest range that has arrived from all sources, in one
// pass and in the order of the sources, so that the result does not depend on the order
// of arrival. With `overwrites_sent`, a chunk whose old contents a peer still reads is
// first combined into a ring of scratch chunks, and written back once it is released.
// Every rank consumes as much as fits into its ring, so ranks that exchange in place
// cannot deadlock.
class GatherState {
 public:
  // `gather` belongs to phase number `phase`. It must outlive this object; its `dst`
  // may still be unknown. Only drop() and keep_own() change it.
  GatherState(Gather& gather, std::uint32_t phase, DType dtype);

  // Takes the message of source `index`. Returns false if its length differs from that
  // of the destination.
  [[nodiscard]] bool put(std::size_t index, std::unique_ptr<Incoming> message,
                         double scale, const PendingSends& sends);
  // Returns whether the header of source `index` has arrived, or the source is this
  // rank.
  bool has(std::size_t index) const;
  const Header& header(std::size_t index) const;

  // Called once the destination is known: requests the payloads. Returns the source
  // that announced another length than that of the destination, if any.
  std::optional<std::size_t> open(const PendingSends& sends);

  // Limits the sources in own memory: earlier phases have computed their first `nbytes`
  // bytes. At first there is no limit.
  void set_own_ready(std::size_t nbytes) { own_ready_ = nbytes; }
  const Gather& gather() const { return gather_; }
  std::size_t combined() const { return combined_; }

  // Combines up to about `budget` bytes and subtracts them from `budget`. Returns
  // whether anything changed.
  bool advance(std::size_t& budget, const PendingSends& sends);
  bool done() const { return done_; }
  // The part of the destination that has not been written.
  std::span<const std::byte> unwritten() const { return gather_.dst.subspan(written_); }

  // The effect of drop() on a source: kKept if all of its bytes have arrived, kReplaced
  // if it is no longer a source, kInvalid if bytes that were combined may be wrong.
  enum class Drop : std::uint8_t { kKept, kReplaced, kInvalid };
  // Leaves out source `index`, whose rank is lost, unless its bytes are all here: from
  // the next byte on, own values take its weight. There must be an own source.
  Drop drop(std::size_t index);
  // Returns whether everything is combined, but the sender had taken back some bytes
  // before they were consumed.
  bool has_invalid_bytes() const;
  // Starts anew, so that the result is this rank's own tensor. Returns false if that
  // tensor has been overwritten, because the gather is in place.
  bool keep_own();

  // Appends the sources whose bytes have not all arrived.
  void collect_missing(std::vector<Missing>& missing) const;
  // Appends the sources without which nothing can be done at present.
  void collect_blockers(std::vector<int>& peers) const;

 private:
  struct SourceState {
    std::unique_ptr<Incoming> message;
    double weight = 1.0;
  };

  bool accept(std::size_t index, const PendingSends& sends);
  std::size_t own_index() const;
  std::size_t available(std::size_t index) const;
  const std::byte* data(std::size_t index) const;
  std::size_t next_block(std::size_t budget) const;
  bool is_in_place() const;
  std::byte* target(std::size_t nbytes, const PendingSends& sends);
  void combine(std::byte* out, std::size_t nbytes);
  void release_consumed();
  bool write_back(const PendingSends& sends);
  bool is_complete() const;

  Gather& gather_;
  const std::uint32_t phase_;
  const DType dtype_;
  std::vector<SourceState> inputs_;
  std::vector<Term> terms_;  // reused by combine()
  std::unique_ptr<std::byte[]> ring_;
  std::size_t own_ready_ = std::numeric_limits<std::size_t>::max();
  std::size_t combined_ = 0;  // bytes of dst computed
  std::size_t written_ = 0;   // bytes stored in dst; the others are in the ring
  bool open_ = false;
  bool done_ = false;
};

}  // namespace bluecomm
