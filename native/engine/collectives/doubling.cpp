#include "engine/collectives/doubling.h"

#include <bit>
#include <utility>

namespace bluecomm {
namespace {

// Members 2k and 2k + 1 with k < extra form a pair, for which member 2k continues. The
// members that continue are numbered 0 .. 2^m - 1; this returns the member with
// `number`.
int member_at(int number, int extra) {
  return number < extra ? 2 * number : number + extra;
}

// Combines this member's value with that of member `other`, the lower member's value
// first.
Gather combine_with(int other, const Team& team, std::span<const std::byte> value,
                    std::span<std::byte> output, const Reduction& reduction,
                    bool is_last) {
  const Source theirs = source_at(team.ranks[other], team.slot);
  const Source own = own_source(value);
  std::vector<Source> sources =
      other < team.me ? std::vector{theirs, own} : std::vector{own, theirs};
  return is_last ? reduction.complete(output, std::move(sources))
                 : reduction.partial(output, std::move(sources));
}

}  // namespace

void add_doubling_allreduce(Plan& plan, std::size_t first, const Team& team,
                            const Reduction& reduction, const Buffers& buffers) {
  const int n = team.size();
  const int going_on = static_cast<int>(std::bit_floor(static_cast<unsigned>(n)));
  const int extra = n - going_on;
  const bool is_paired = team.me < 2 * extra;
  const bool is_left_out = is_paired && team.me % 2 == 1;
  const auto send_to = [&](Phase& phase, int member, std::span<const std::byte> value) {
    phase.sends.push_back(
        {.peer = team.ranks[member], .slot = team.slot, .bytes = value});
  };

  std::size_t number = first;
  std::span<const std::byte> value = buffers.input;
  if (reduction.prescale != 1.0) {
    phase_at(plan, number++)
        .gathers.push_back(
            reduction.partial(buffers.output, {own_source(value, reduction.prescale)}));
    value = buffers.output;
  }
  if (extra > 0) {
    Phase& phase = phase_at(plan, number++);
    if (is_left_out) {
      send_to(phase, team.me - 1, value);
    } else if (is_paired) {
      phase.gathers.push_back(combine_with(team.me + 1, team, value, buffers.output,
                                           reduction, /*is_last=*/false));
      value = buffers.output;
    }
  }
  for (int bit = 1; bit < going_on; bit *= 2) {
    Phase& phase = phase_at(plan, number++);
    if (is_left_out) continue;
    const int me = is_paired ? team.me / 2 : team.me - extra;
    const int other = member_at(me ^ bit, extra);
    send_to(phase, other, value);
    Gather gather = combine_with(other, team, value, buffers.output, reduction,
                                 /*is_last=*/2 * bit == going_on);
    gather.overwrites_sent = value.data() == buffers.output.data();
    phase.gathers.push_back(std::move(gather));
    value = buffers.output;
  }
  if (extra > 0) {
    Phase& phase = phase_at(plan, number++);
    if (is_left_out) {
      phase.gathers.push_back(
          copy_from(team.ranks[team.me - 1], team.slot, buffers.output));
    } else if (is_paired) {
      send_to(phase, team.me + 1, value);
    }
  }
}

}  // namespace bluecomm
