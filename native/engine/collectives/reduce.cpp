#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

// The root reduces the tensors of all members, which it answers with empty messages, as
// in gather.
void add_flat(Plan& plan, const Call& call, const Team& team,
              const Reduction& reduction) {
  Phase& phase = phase_at(plan, 0);
  if (team.me != call.root) {
    const int root = team.ranks[call.root];
    phase.sends.push_back({.peer = root, .slot = 0, .bytes = call.input});
    phase.gathers.push_back(copy_from(root, 0, {}));
    return;
  }
  std::vector<Source> sources;
  for (int i = 0; i < team.size(); ++i) {
    if (i == team.me) {
      sources.push_back(own_source(call.input, reduction.prescale));
      continue;
    }
    sources.push_back(source_at(team.ranks[i], 0, reduction.prescale));
    phase.sends.push_back({.peer = team.ranks[i], .slot = 0, .bytes = {}});
  }
  phase.gathers.push_back(reduction.complete(call.output, std::move(sources)));
}

// Each member reduces a slice, then the root collects the slices.
void add_sliced(Plan& plan, const Call& call, const Team& team,
                const Reduction& reduction) {
  const std::vector<Range> slices = cut(call.input.size(), team.size());
  const bool is_root = team.me == call.root;
  std::span<std::byte> mine;
  if (is_root) {
    mine = slices[team.me].of(call.output);
  } else {
    plan.scratch_nbytes = slices[team.me].length;
    plan.scratch = std::make_shared_for_overwrite<std::byte[]>(plan.scratch_nbytes);
    mine = {plan.scratch.get(), plan.scratch_nbytes};
  }
  add_direct_reduce_scatter(plan, 0, team, reduction, call.input, mine, slices);
  Phase& phase = phase_at(plan, 1);
  if (!is_root) {
    phase.sends.push_back({.peer = team.ranks[call.root], .slot = 0, .bytes = mine});
    return;
  }
  for (int i = 0; i < team.size(); ++i) {
    if (i == team.me) continue;
    phase.gathers.push_back(copy_from(team.ranks[i], 0, slices[i].of(call.output)));
  }
}

}  // namespace

Plan plan_reduce(const Call& call, const Tuning& tuning) {
  check_root(call);
  check_input(call);
  check_reduction(call);
  const Team team = team_of(*call.group);
  if (team.me == call.root) {
    check_output(call, call.input);
  } else if (!call.output.empty()) {
    reject(call, "expected no output on a rank other than the root, got " +
                     std::to_string(call.output.size()) + " bytes");
  }

  Plan plan;
  const Reduction reduction = reduction_of(call, team.size());
  if (call.input.size() <= tuning.reduce_flat_bytes) {
    add_flat(plan, call, team, reduction);
  } else {
    plan.algorithm = Algorithm::kDirect;
    add_sliced(plan, call, team, reduction);
  }
  return plan;
}

}  // namespace bluecomm
