#include "tests/collectives/plan_state.h"

#include <algorithm>

namespace bluecomm::test {

bool overlap(ConstBytes a, ConstBytes b) {
  return !a.empty() && !b.empty() && a.data() < b.data() + b.size() &&
         b.data() < a.data() + a.size();
}

bool holds(ConstBytes whole, ConstBytes part) {
  return part.empty() || (part.data() >= whole.data() &&
                          part.data() + part.size() <= whole.data() + whole.size());
}

PlanState::PlanState(MemberCall& member_, Network& network_)
    : member(member_),
      network(network_),
      rank(member_.call.group->ranks[member_.call.group->me]) {}

std::string PlanState::text() const {
  return "rank " + std::to_string(rank) + (done() ? " is done" : " is in phase ") +
         (done() ? "" : std::to_string(next_phase - running.size()));
}

InFlight* PlanState::find(const Source& source, std::size_t phase) {
  const auto found = network.find({source.peer, rank, phase, source.slot});
  return found == network.end() ? nullptr : &found->second;
}

std::size_t PlanState::ready_prefix(ConstBytes bytes, std::size_t phase) const {
  std::size_t ready = bytes.size();
  for (const SimulatedPhase& one : running) {
    if (one.number >= phase) break;
    for (std::size_t i = 0; i < one.progress.size(); ++i) {
      const ConstBytes rest = one.phase.gathers[i].dst.subspan(one.progress[i].written);
      if (!overlap(bytes.first(ready), rest)) continue;
      ready =
          static_cast<std::size_t>(std::max(rest.data(), bytes.data()) - bytes.data());
    }
  }
  return ready;
}

std::size_t PlanState::released(std::size_t phase, const Send& send) const {
  return network.at({rank, send.peer, phase, send.slot}).released;
}

bool PlanState::is_read(std::size_t phase, const Send& send, ConstBytes dst) const {
  if (!overlap(send.bytes, dst)) return false;
  const std::byte* const end =
      std::min(dst.data() + dst.size(), send.bytes.data() + send.bytes.size());
  return released(phase, send) < static_cast<std::size_t>(end - send.bytes.data());
}

}  // namespace bluecomm::test
