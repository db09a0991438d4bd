#include "engine/collectives/flat.h"

#include <utility>

namespace bluecomm {

void add_flat_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers) {
  Phase& phase = phase_at(plan, first);
  std::vector<Source> sources;
  for (int i = 0; i < team.size(); ++i) {
    const int peer = team.ranks[i];
    if (i == team.me) {
      sources.push_back(own_source(buffers.input, reduction.prescale));
    } else {
      phase.sends.push_back({.peer = peer, .slot = team.slot, .bytes = buffers.input});
      sources.push_back(source_at(peer, team.slot, reduction.prescale));
    }
  }
  Gather gather = reduction.complete(buffers.output, std::move(sources));
  gather.overwrites_sent = buffers.in_place() && team.size() > 1;
  phase.gathers.push_back(std::move(gather));
}

}  // namespace bluecomm
