#pragma once

#include <cstddef>
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
// Repeatedly the longest stretch that all sources can show is combined in one pass, in
// the order of the sources, so that the result does not depend on who was first. With
// `overwrites_sent` a chunk whose old contents a peer still reads goes to a ring of
// scratch chunks first and is written back once it is released. Every rank consumes
// what it can into its ring, so ranks that exchange in place never wait for each other
// in a circle.
class GatherState {
 public:
  // `gather` outlives this object; its `dst` may still be unknown.
  GatherState(const Gather& gather, DType dtype);

  // Hands over the message of source `index`. False: it announced another length than
  // the destination has.
  [[nodiscard]] bool put(std::size_t index, std::unique_ptr<Incoming> message,
                         double scale, const PendingSends& sends);
  // The header of source `index` has arrived, or the source is this rank.
  bool has(std::size_t index) const;
  const Header& header(std::size_t index) const;

  // From here on the destination is known, and payloads are asked for. Returns the
  // source that announced another length, if any.
  std::optional<std::size_t> open(const PendingSends& sends);

  // Moves up to about `budget` bytes and takes them off; true when anything changed.
  bool advance(std::size_t& budget, const PendingSends& sends);
  bool done() const { return done_; }

  // Sources that have not shown all of their bytes.
  void collect_missing(std::vector<Missing>& missing) const;
  // Sources without which nothing can be done right now.
  void collect_blockers(std::vector<int>& peers) const;

 private:
  struct Input {
    std::unique_ptr<Incoming> message;
    double weight = 1.0;
  };

  bool accept(std::size_t index, const PendingSends& sends);
  std::size_t available(std::size_t index) const;
  const std::byte* data(std::size_t index) const;
  std::size_t next_block(std::size_t budget) const;
  std::byte* place(std::size_t nbytes, const PendingSends& sends);
  void combine(std::byte* out, std::size_t nbytes);
  void give_back();
  bool write_back(const PendingSends& sends);
  bool is_complete() const;

  const Gather& gather_;
  const DType dtype_;
  std::vector<Input> inputs_;
  std::vector<Term> terms_;  // reused by combine()
  std::unique_ptr<std::byte[]> ring_;
  std::size_t combined_ = 0;  // bytes of dst computed
  std::size_t written_ = 0;   // bytes of dst in place; less only while in the ring
  bool open_ = false;
  bool done_ = false;
};

}  // namespace bluecomm
