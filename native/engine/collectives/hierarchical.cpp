#include "engine/collectives/hierarchical.h"

#include "engine/collectives/allreduce.h"
#include "engine/collectives/direct.h"

namespace bluecomm {

void add_hierarchical_allreduce(Plan& plan, std::size_t first, const Group& group,
                                const Reduction& reduction, const Buffers& buffers,
                                const Tuning& tuning) {
  const Machines machines(group);
  const Team local = team_of(group, machines.local_members());
  const std::vector<Range> slices = cut(buffers.output.size(), local.size());
  const std::vector<Piece> pieces = cut_into_pieces(machines, buffers.output.size());

  // A machine with one member has nothing to reduce and continues with its input.
  Buffers between = buffers;
  if (local.size() > 1 || reduction.prescale != 1.0) {
    add_direct_reduce_scatter(plan, first, local,
                              {reduction.op, reduction.prescale, 1.0}, buffers.input,
                              slices[local.me].of(buffers.output), slices);
    between.input = buffers.output;
  }

  // One algorithm for all pieces, so that all ranks have the same number of phases.
  const std::size_t usual_piece = buffers.output.size() / pieces.size();
  const Algorithm algorithm =
      choose_allreduce(usual_piece, machines.size(), Reach::kNetwork, tuning);
  for (std::size_t k = 0; k < pieces.size(); ++k) {
    const std::vector<int>& owners = pieces[k].owners;
    if (owners[machines.mine] != group.me) continue;
    add_allreduce(algorithm, plan, first + 1,
                  team_of(group, owners, static_cast<std::uint32_t>(k)),
                  {reduction.op, 1.0, reduction.postscale},
                  between.part(pieces[k].range));
  }

  const std::size_t last = first + 1 + allreduce_phases(algorithm, machines.size());
  add_direct_allgather(plan, last, local, buffers.output, slices);
  // The result of a slice arrives after its owner has read this rank's input.
  for (Gather& gather : phase_at(plan, last).gathers) {
    gather.overwrites_sent = buffers.in_place();
    gather.follows_reads = true;
  }
  if (may_overlap(algorithm)) overlap_phases(plan, first);
}

}  // namespace bluecomm
