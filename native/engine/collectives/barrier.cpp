#include "engine/collectives/collectives.h"
#include "engine/collectives/team.h"

namespace bluecomm {

// Dissemination: in step k, member i sends to member i + 2^k and receives from member i
// - 2^k. After ceil(log2 n) steps it has heard from all members, directly or
// indirectly.
//
// Source: Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization",
// Int. J. Parallel Programming 17(1), 1988.
Plan plan_barrier(const Call& call, const Tuning&) {
  const Group& group = *call.group;
  const int n = group.size();
  Plan plan;
  for (int distance = 1; distance < n; distance *= 2) {
    Phase phase;
    phase.sends.push_back(
        {.peer = group.ranks[(group.me + distance) % n], .slot = 0, .bytes = {}});
    phase.gathers.push_back(
        copy_from(group.ranks[(group.me - distance + n) % n], 0, {}));
    plan.phases.push_back(std::move(phase));
  }
  return plan;
}

}  // namespace bluecomm
