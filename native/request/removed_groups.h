#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>

#include "common/recent.h"

namespace bluecomm {

// The ids of the groups that this rank has removed last. Messages of other members may
// still arrive for them. Guarded by the engine's progress lock.
class RemovedGroups {
 public:
  void add(std::uint64_t id) { ids_.insert(id, true); }
  // Returns whether the group was among the last kRemembered that were removed.
  bool contains(std::uint64_t id) const { return ids_.contains(id); }

 private:
  static constexpr std::size_t kRemembered = 1024;

  RecentMap<std::uint64_t, bool, std::hash<std::uint64_t>> ids_{kRemembered};
};

}  // namespace bluecomm
