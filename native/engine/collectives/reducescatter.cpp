#include <cstdint>
#include <utility>
#include <vector>

#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member reduces its rows directly from all members' inputs. No
// algorithm sends less.
Plan plan_reducescatter(const Call& call, const Tuning&) {
  if (call.shape.empty()) {
    reject(call, "expected a tensor with at least one dimension, got one with none");
  }
  check_input(call);
  check_reduction(call);
  const Team team = team_of(*call.group);

  std::vector<std::int64_t> splits = call.splits;
  if (splits.empty()) {
    splits = share_rows(call.shape.front(), team.size());
  } else {
    check_splits(call);
  }
  std::vector<Range> shares;
  std::size_t offset = 0;
  for (const std::int64_t rows : splits) {
    const std::size_t length = static_cast<std::size_t>(rows) * row_nbytes(call);
    shares.push_back({offset, length});
    offset += length;
  }
  check_output(call,
               call.input.subspan(shares[team.me].offset, shares[team.me].length));

  Plan plan;
  add_direct_reduce_scatter(plan, 0, team, reduction_of(call, team.size()), call.input,
                            call.output, shares);
  return plan;
}

}  // namespace bluecomm
