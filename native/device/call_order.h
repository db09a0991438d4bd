#pragma once

#include <compare>
#include <cstdint>
#include <set>
#include <span>

namespace bluecomm::device {

// The place of a call in the order of all calls. `first` is the rank, in the world, of
// the first member of the call's group, which has chosen the number.
struct CallNumber {
  std::uint64_t time = 0;
  std::int32_t first = 0;

  auto operator<=>(const CallNumber&) const = default;
};

// One rank's share in the order of calls of several groups: any two ranks find the same
// order for the calls of which both are members. It is the algorithm of Skeen for
// ordered multicast: each member proposes a time, the greatest one counts, and a member
// holds back each call that may still be preceded by one that it has proposed for.
// Not thread-safe.
class CallOrder {
 public:
  // No job makes so many calls. Later times of a broken peer would let the clock wrap.
  static constexpr std::uint64_t kLatest = std::uint64_t{1} << 62;

  // Proposes a time for a call, whose number will be greater.
  std::uint64_t propose();
  // Returns the number of a call whose other members have proposed these times. This
  // rank's own proposal, to be settled, is the time before that of the number.
  CallNumber decide(std::span<const std::uint64_t> proposals, int first);
  // The call for which this rank has proposed a time has got its number.
  void settle(std::uint64_t proposal, CallNumber number);
  // Returns whether a call for which this rank has made a proposal can have a number.
  static bool is_possible(std::uint64_t proposal, CallNumber number) {
    return number.time > proposal && number.time <= kLatest;
  }
  // The call has failed, and gets no number.
  void withdraw(std::uint64_t proposal);
  // Returns whether no call can get a number below this one any more.
  bool is_settled(CallNumber number) const;

 private:
  std::uint64_t clock_ = 1;                // at least any time that this rank has seen
  std::multiset<std::uint64_t> proposed_;  // for calls without a number
};

}  // namespace bluecomm::device
