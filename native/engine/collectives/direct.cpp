#include "engine/collectives/direct.h"

#include <algorithm>
#include <utility>

namespace bluecomm {
namespace {

// Limits the length of the plans of huge tensors.
constexpr std::size_t kMaxBlocks = 64;

}  // namespace

void add_direct_reduce_scatter(Plan& plan, std::size_t number, const Team& team,
                               const Reduction& reduction,
                               std::span<const std::byte> input,
                               std::span<std::byte> own_slice,
                               const std::vector<Range>& slices) {
  Phase& phase = phase_at(plan, number);
  std::vector<Source> sources;
  for (int i = 0; i < team.size(); ++i) {
    const std::span<const std::byte> slice = slices[i].of(input);
    if (i == team.me) {
      sources.push_back(own_source(slice, reduction.prescale));
    } else {
      const int peer = team.ranks[i];
      phase.sends.push_back({.peer = peer, .slot = team.slot, .bytes = slice});
      sources.push_back(source_at(peer, team.slot, reduction.prescale));
    }
  }
  // In place, this overwrites the only slice that is not sent.
  phase.gathers.push_back(reduction.complete(own_slice, std::move(sources)));
}

void add_direct_allgather(Plan& plan, std::size_t number, const Team& team,
                          std::span<std::byte> tensor,
                          const std::vector<Range>& slices) {
  Phase& phase = phase_at(plan, number);
  const std::span<const std::byte> mine = slices[team.me].of(tensor);
  for (int i = 0; i < team.size(); ++i) {
    if (i == team.me) continue;
    const int peer = team.ranks[i];
    phase.sends.push_back({.peer = peer, .slot = team.slot, .bytes = mine});
    phase.gathers.push_back(copy_from(peer, team.slot, slices[i].of(tensor)));
  }
}

void add_direct_allreduce(Plan& plan, std::size_t first, const Team& team,
                          const Reduction& reduction, const Buffers& buffers) {
  const std::vector<Range> slices = cut(buffers.output.size(), team.size());
  const std::size_t sends_before = phase_at(plan, first).sends.size();
  const std::size_t gathers_before = phase_at(plan, first + 1).gathers.size();
  add_direct_reduce_scatter(plan, first, team, reduction, buffers.input,
                            slices[team.me].of(buffers.output), slices);
  add_direct_allgather(plan, first + 1, team, buffers.output, slices);
  // The arrival of a member's reduced slice shows that the member has read its inputs,
  // so the next phase need not wait for the release of these sends.
  for (Send& send : std::span(plan.phases[first].sends).subspan(sends_before)) {
    send.lingers = true;
  }
  for (Gather& gather :
       std::span(plan.phases[first + 1].gathers).subspan(gathers_before)) {
    gather.overwrites_sent = buffers.in_place();
    gather.follows_reads = true;
    gather.past_caches = buffers.past_caches;
  }
}

void add_block_allreduce(Plan& plan, const Team& team, const Reduction& reduction,
                         const Buffers& buffers, std::size_t block_bytes) {
  const std::size_t count = (buffers.output.size() + block_bytes - 1) / block_bytes;
  const auto blocks = static_cast<int>(std::clamp<std::size_t>(count, 1, kMaxBlocks));
  for (const Range& block : cut(buffers.output.size(), blocks)) {
    const std::size_t first = plan.phases.size();
    add_direct_allreduce(plan, first, team, reduction, buffers.part(block));
    // A reduced slice is no longer modified, so peers may read it until the end.
    for (Send& send : plan.phases[first + 1].sends) send.lingers = true;
  }
}

}  // namespace bluecomm
