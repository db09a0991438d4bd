#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace bluecomm {

// Knows which ranks have joined: they have no data left and take part with neutral
// values in the operations of the others, until all have joined.
//
// Joins are counted in rounds. All ranks leave a round when all have joined, so a rank
// that announces round r has joined if this rank has left fewer than r rounds. A late
// announcement of an earlier round changes nothing. Not thread-safe; the dispatcher
// calls it under the progress lock.
class Joining {
 public:
  explicit Joining(int size) : announced_(static_cast<std::size_t>(size)) {}

  // This rank joins. Returns the number of the round.
  std::uint32_t enter() { return mine_ = left_ + 1; }
  bool is_joined() const { return mine_ > left_; }

  // A peer has announced that it joins.
  void note(int peer, std::uint32_t round) {
    std::uint32_t& known = announced_[static_cast<std::size_t>(peer)];
    known = std::max(known, round);
    update();
  }
  bool is_joined(int peer) const {
    return announced_[static_cast<std::size_t>(peer)] > left_;
  }
  // Whether this rank has to tell others about its operations.
  bool must_announce() const { return any_ && !is_joined(); }

  // Counts an operation of all ranks in which this rank took part for others.
  void count_answer() { ++answers_; }
  std::uint64_t answers() const { return answers_; }

  // All ranks have joined; the round ends.
  void leave() {
    ++left_;
    answers_ = 0;
    update();
  }

 private:
  void update() {
    any_ = std::any_of(announced_.begin(), announced_.end(),
                       [this](std::uint32_t round) { return round > left_; });
  }

  std::vector<std::uint32_t> announced_;  // the last round that each peer announced
  std::uint32_t mine_ = 0;                // the last round that this rank joined
  std::uint32_t left_ = 0;                // the number of rounds that have ended
  std::uint64_t answers_ = 0;             // in this round
  bool any_ = false;                      // some peer has joined
};

}  // namespace bluecomm
