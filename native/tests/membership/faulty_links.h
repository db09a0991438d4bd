#pragma once

#include <array>
#include <chrono>
#include <cstddef>

#include "engine/membership/membership.h"

namespace bluecomm::test {

// The links between the members of a schedule: which of them are cut for a while, in
// one direction, or broken for good, in both.
class FaultyLinks {
 public:
  using Time = Membership::Time;
  static constexpr int kMost = 8;  // members

  void cut(int from, int to, Time now, Time until) {
    if (!is_cut(from, to, now)) cut_since_[at(from)][at(to)] = now;
    cut_until_[at(from)][at(to)] = until;
  }
  void heal_cuts() {
    for (auto& row : cut_until_) row.fill({});
  }
  bool is_cut(int from, int to, Time now) const {
    return now < cut_until_[at(from)][at(to)];
  }
  // For how long a link that is cut has been cut.
  Time::duration cut_for(int from, int to, Time now) const {
    return now - cut_since_[at(from)][at(to)];
  }

  void break_between(int a, int b) {
    broken_[at(a)][at(b)] = broken_[at(b)][at(a)] = true;
  }
  bool is_broken(int a, int b) const { return broken_[at(a)][at(b)]; }

 private:
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  std::array<std::array<Time, kMost>, kMost> cut_since_{};
  std::array<std::array<Time, kMost>, kMost> cut_until_{};
  std::array<std::array<bool, kMost>, kMost> broken_{};
};

}  // namespace bluecomm::test
