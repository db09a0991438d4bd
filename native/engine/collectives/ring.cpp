#include "engine/collectives/ring.h"

#include <utility>

namespace bluecomm {
namespace {

struct Neighbors {
  int next;
  int previous;
};

Neighbors neighbors_of(const Team& team) {
  const int n = team.size();
  return {team.ranks[(team.me + 1) % n], team.ranks[(team.me + n - 1) % n]};
}

// Slice k starts at member k + 1 and is summed on its way to member k, so in step s
// member i receives slice i - s - 2, reduced over members i - s - 1, ..., i - 1.
void add_reduce_scatter(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers,
                        const std::vector<Range>& slices) {
  const int n = team.size();
  const auto [next, previous] = neighbors_of(team);
  for (int step = 0; step < n - 1; ++step) {
    const Buffers leaving = buffers.part(slices[(team.me - step - 1 + n) % n]);
    const Buffers coming = buffers.part(slices[(team.me - step - 2 + 2 * n) % n]);
    // The first member sends its own values, later members send partial results.
    const bool is_first = step == 0;
    Phase& phase = phase_at(plan, first + step);
    phase.sends.push_back({.peer = next,
                           .slot = team.slot,
                           .bytes = is_first ? leaving.input : leaving.output});
    std::vector<Source> sources{
        source_at(previous, team.slot, is_first ? reduction.prescale : 1.0),
        own_source(coming.input, reduction.prescale)};
    const bool is_last = step == n - 2;
    phase.gathers.push_back(is_last
                                ? reduction.complete(coming.output, std::move(sources))
                                : reduction.partial(coming.output, std::move(sources)));
  }
}

}  // namespace

void add_ring_allgather(Plan& plan, std::size_t first, const Team& team,
                        std::span<std::byte> tensor, const std::vector<Range>& slices) {
  const int n = team.size();
  const auto [next, previous] = neighbors_of(team);
  for (int step = 0; step < n - 1; ++step) {
    const Range leaving = slices[(team.me - step + n) % n];
    const Range coming = slices[(team.me - step - 1 + n) % n];
    Phase& phase = phase_at(plan, first + step);
    phase.sends.push_back(
        {.peer = next, .slot = team.slot, .bytes = leaving.of(tensor)});
    phase.gathers.push_back(copy_from(previous, team.slot, coming.of(tensor)));
  }
}

void add_ring_allreduce(Plan& plan, std::size_t first, const Team& team,
                        const Reduction& reduction, const Buffers& buffers) {
  const std::vector<Range> slices = cut(buffers.output.size(), team.size());
  add_reduce_scatter(plan, first, team, reduction, buffers, slices);
  const std::size_t half = first + slices.size() - 1;
  add_ring_allgather(plan, half, team, buffers.output, slices);
  // A slice comes back complete after all members have added to what this one sent.
  for (std::size_t number = half; number < half + slices.size() - 1; ++number) {
    for (Gather& gather : phase_at(plan, number).gathers) {
      gather.overwrites_sent = gather.follows_reads = true;
    }
  }
}

}  // namespace bluecomm
