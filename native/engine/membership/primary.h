#pragma once

#include "engine/membership/member_set.h"

namespace bluecomm {

// Returns whether the members in `present` may decide on the next epoch. `dead` are the
// members whose processes have certainly ended; it may overlap `present`, whose members
// have answered before they died.
//
// A side decides if it is more than half of the epoch, or exactly half with rank 0, or
// if nobody else is left. The certainly dead are not subtracted from the whole: they
// may have decided together with members that this side does not reach
// (docs/membership.md has an example).
inline bool is_primary(const MemberSet& present, const MemberSet& dead) {
  if (present.empty()) return false;
  const int size = present.size();
  const int twice = 2 * present.count();
  return twice > size || (twice == size && present.contains(0)) ||
         (present | dead).count() == size;
}

}  // namespace bluecomm
