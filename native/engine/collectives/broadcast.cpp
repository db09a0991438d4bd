#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/ring.h"
#include "engine/collectives/team.h"
#include "engine/collectives/validate.h"

namespace bluecomm {
namespace {

// Returns the rank of the member that is `number` positions after the root around the
// circle of members. The root has number 0.
int rank_at(const Call& call, int number) {
  const Group& group = *call.group;
  return group.ranks[(call.root + number) % group.size()];
}

int my_number(const Call& call) {
  const Group& group = *call.group;
  return (group.me - call.root + group.size()) % group.size();
}

// Sends to a child, which answers with an empty message. Without the answer, a rank
// that wrongly considers itself the root would never notice, because short messages are
// sent without waiting for a receiver.
void give(Phase& phase, int child, std::span<const std::byte> bytes) {
  phase.sends.push_back({.peer = child, .slot = 0, .bytes = bytes});
  phase.gathers.push_back(copy_from(child, 0, {}));
}

void take(Phase& phase, int parent, std::span<std::byte> dst) {
  phase.gathers.push_back(copy_from(parent, 0, dst));
  phase.sends.push_back({.peer = parent, .slot = 0, .bytes = {}});
}

// The root sends its tensor to all members.
void add_flat(Plan& plan, const Call& call) {
  Phase& phase = phase_at(plan, 0);
  if (my_number(call) > 0) {
    take(phase, rank_at(call, 0), call.output);
    return;
  }
  for (int number = 1; number < call.group->size(); ++number) {
    give(phase, rank_at(call, number), call.input);
  }
}

// Binomial tree: in step k, each number i below 2^k sends to number i + 2^k.
void add_tree(Plan& plan, const Call& call) {
  const int n = call.group->size();
  const int me = my_number(call);
  const std::span<const std::byte> tensor = me == 0 ? call.input : call.output;
  std::size_t step = 0;
  for (int holders = 1; holders < n; holders *= 2, ++step) {
    Phase& phase = phase_at(plan, step);
    if (me < holders && me + holders < n) {
      give(phase, rank_at(call, me + holders), tensor);
    } else if (me >= holders && me < 2 * holders) {
      take(phase, rank_at(call, me - holders), call.output);
    }
  }
}

// The root scatters slices to the other members, which then gather the remaining slices
// from one another. Each byte leaves the root once.
void add_scatter(Plan& plan, const Call& call, const Tuning& tuning) {
  Team others;
  for (int number = 1; number < call.group->size(); ++number) {
    others.ranks.push_back(rank_at(call, number));
  }
  others.me = my_number(call) - 1;
  const std::vector<Range> slices = cut(call.output.size(), others.size());

  Phase& phase = phase_at(plan, 0);
  if (my_number(call) == 0) {
    for (int i = 0; i < others.size(); ++i) {
      give(phase, others.ranks[i], slices[i].of(call.input));
    }
    return;
  }
  take(phase, rank_at(call, 0), slices[others.me].of(call.output));
  if (others.size() <= tuning.direct_members) {
    add_direct_allgather(plan, 1, others, call.output, slices);
  } else {
    add_ring_allgather(plan, 1, others, call.output, slices);
  }
}

}  // namespace

Plan plan_broadcast(const Call& call, const Tuning& tuning) {
  const int n = call.group->size();
  check_root(call);
  check_input(call);
  check_output(call, call.input);

  Plan plan;
  if (n <= tuning.broadcast_flat_members) {
    add_flat(plan, call);
  } else if (call.input.size() < tuning.broadcast_scatter_bytes) {
    plan.algorithm = Algorithm::kTree;
    add_tree(plan, call);
  } else {
    plan.algorithm = Algorithm::kScatter;
    add_scatter(plan, call, tuning);
  }
  if (my_number(call) == 0 && call.output.data() != call.input.data()) {
    phase_at(plan, 0).gathers.push_back(copy_own(call.input, call.output));
  }
  return plan;
}

}  // namespace bluecomm
