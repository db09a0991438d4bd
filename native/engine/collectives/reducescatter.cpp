#include <utility>

#include "engine/collectives/collectives.h"
#include "engine/collectives/direct.h"
#include "engine/collectives/validate.h"

namespace bluecomm {

// One phase: each member reduces its rows directly from all members' inputs. No
// algorithm sends less.
Plan plan_reducescatter(const Request& request, const Tuning&) {
  if (request.shape.empty()) {
    refuse(request, "expected a tensor with at least one dimension, got one with none");
  }
  check_input(request);
  check_reduction(request);
  const Team team = team_of(*request.group);

  std::vector<Range> shares;
  std::size_t offset = 0;
  for (std::int64_t rows : share_rows(request.shape.front(), team.size())) {
    const std::size_t length = static_cast<std::size_t>(rows) * row_nbytes(request);
    shares.push_back({offset, length});
    offset += length;
  }
  check_output(request,
               request.input.subspan(shares[team.me].offset, shares[team.me].length));

  Plan plan;
  add_direct_reduce_scatter(plan, 0, team, reduction_of(request, team.size()),
                            request.input, request.output, shares);
  return plan;
}

}  // namespace bluecomm
