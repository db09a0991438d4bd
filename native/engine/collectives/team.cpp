#include "engine/collectives/team.h"

#include <utility>

namespace bluecomm {

Team team_of(const Group& group, const std::vector<int>& members, std::uint32_t slot) {
  Team team;
  team.slot = slot;
  for (int member : members) {
    if (member == group.me) team.me = team.size();
    team.ranks.push_back(group.ranks[member]);
  }
  return team;
}

Team team_of(const Group& group) { return {group.ranks, group.me, 0}; }

Gather Reduction::partial(std::span<std::byte> dst, std::vector<Source> sources) const {
  Gather gather;
  gather.dst = dst;
  gather.sources = std::move(sources);
  gather.combine = Combine::kReduce;
  gather.op = op;
  return gather;
}

Gather Reduction::complete(std::span<std::byte> dst,
                           std::vector<Source> sources) const {
  Gather gather = partial(dst, std::move(sources));
  gather.post_scale = postscale;
  return gather;
}

Reduction reduction_of(const Call& call, int members) {
  if (call.op == ReduceOp::kAverage) {
    return {ReduceOp::kSum, call.prescale, call.postscale / members};
  }
  return {call.op, call.prescale, call.postscale};
}

Phase& phase_at(Plan& plan, std::size_t index) {
  if (plan.phases.size() <= index) plan.phases.resize(index + 1);
  return plan.phases[index];
}

void overlap_phases(Plan& plan, std::size_t first) {
  for (std::size_t i = first + 1; i < plan.phases.size(); ++i) {
    plan.phases[i].overlaps = true;
  }
}

Gather copy_from(int peer, std::uint32_t slot, std::span<std::byte> dst) {
  Gather gather;
  gather.dst = dst;
  gather.sources.push_back(source_at(peer, slot));
  return gather;
}

Gather copy_own(std::span<const std::byte> own, std::span<std::byte> dst) {
  Gather gather;
  gather.dst = dst;
  gather.sources.push_back(own_source(own));
  return gather;
}

Source own_source(std::span<const std::byte> own, double weight) {
  return {.peer = kSelf, .slot = 0, .own = own, .weight = weight};
}

Source source_at(int peer, std::uint32_t slot, double weight) {
  return {.peer = peer, .slot = slot, .own = {}, .weight = weight};
}

}  // namespace bluecomm
