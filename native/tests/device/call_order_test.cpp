// The order of calls of several groups, when messages take any time.
#include "device/call_order.h"

#include <map>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "tests/check.h"

namespace bluecomm::test {
namespace {

using device::CallNumber;
using device::CallOrder;

// A call of some ranks, and what has happened to it.
struct OrderedCall {
  std::vector<int> ranks;
  std::map<int, std::uint64_t> proposals;
  std::optional<CallNumber> number;
  std::size_t told = 0;  // members that have taken the number
};

// One rank: its share of the order, calls that it may issue, and those that it has.
struct OrderedRank {
  CallOrder order;
  std::map<CallNumber, int> numbered;
  std::vector<int> issued;

  void issue() {
    while (!numbered.empty() && order.is_settled(numbered.begin()->first)) {
      issued.push_back(numbered.begin()->second);
      numbered.erase(numbered.begin());
    }
  }
};

// Takes one step of a call: a proposal, the decision, or the news of it at a member.
void take_step(int id, OrderedCall& call, std::vector<OrderedRank>& ranks) {
  const auto at = [&](int rank) -> OrderedRank& {
    return ranks[static_cast<std::size_t>(rank)];
  };
  if (call.proposals.size() + 1 < call.ranks.size()) {
    const int rank = call.ranks[call.proposals.size() + 1];
    call.proposals[rank] = at(rank).order.propose();
  } else if (!call.number) {
    std::vector<std::uint64_t> proposals;
    for (const auto& [rank, time] : call.proposals) proposals.push_back(time);
    const int first = call.ranks.front();
    call.number = at(first).order.decide(proposals, first);
    call.proposals[first] = call.number->time - 1;
  } else {
    const int rank = call.ranks[call.told++];
    at(rank).order.settle(call.proposals[rank], *call.number);
    at(rank).numbered[*call.number] = id;
    at(rank).issue();
  }
}

// Returns those of `issued` in which `other` takes part, too.
std::vector<int> shared(const std::vector<int>& issued,
                        const std::vector<OrderedCall>& calls, int other) {
  std::vector<int> result;
  for (const int id : issued) {
    for (const int rank : calls[static_cast<std::size_t>(id)].ranks) {
      if (rank == other) result.push_back(id);
    }
  }
  return result;
}

TEST(call_order, is_the_same_for_the_calls_that_two_ranks_share) {
  constexpr int kRanks = 4;
  for (unsigned seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    std::vector<OrderedCall> calls(12);
    for (OrderedCall& call : calls) {
      while (call.ranks.size() < 2) {
        call.ranks.clear();
        for (int rank = 0; rank < kRanks; ++rank) {
          if (random() % 2 == 0) call.ranks.push_back(rank);
        }
      }
    }
    std::vector<OrderedRank> ranks(kRanks);
    std::vector<int> open;
    for (int id = 0; id < static_cast<int>(calls.size()); ++id) open.push_back(id);
    while (!open.empty()) {
      const std::size_t which = random() % open.size();
      OrderedCall& call = calls[static_cast<std::size_t>(open[which])];
      take_step(open[which], call, ranks);
      if (call.told == call.ranks.size()) {
        open.erase(open.begin() + static_cast<std::ptrdiff_t>(which));
      }
    }
    for (int a = 0; a < kRanks; ++a) {
      CHECK(ranks[static_cast<std::size_t>(a)].numbered.empty());
      for (int b = 0; b < kRanks; ++b) {
        CHECK(shared(ranks[static_cast<std::size_t>(a)].issued, calls, b) ==
              shared(ranks[static_cast<std::size_t>(b)].issued, calls, a));
      }
    }
  }
}

TEST(call_order, waits_for_a_call_that_may_come_first) {
  CallOrder order;
  const std::uint64_t proposal = order.propose();
  const CallNumber later{proposal + 1, 3};
  CHECK(!order.is_settled(later));
  order.withdraw(proposal);
  CHECK(order.is_settled(later));
}

}  // namespace
}  // namespace bluecomm::test
