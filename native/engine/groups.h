#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <unordered_map>

#include "common/recent.h"
#include "engine/call.h"

namespace bluecomm {

// The groups of ranks that this rank takes part in, by their ids, which are never used
// again. Guarded by the engine's progress lock.
class Groups {
 public:
  // Throws std::invalid_argument if the id is in use.
  void add(Group group);
  // Returns null for an unknown id.
  std::shared_ptr<const Group> find(std::uint64_t id) const;
  // Throws std::invalid_argument for an unknown id.
  void remove(std::uint64_t id);
  // Returns whether the group was among the last kRemembered that were removed.
  bool was_removed(std::uint64_t id) const { return removed_.contains(id); }

 private:
  static constexpr std::size_t kRemembered = 1024;

  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> groups_;
  RecentMap<std::uint64_t, bool, std::hash<std::uint64_t>> removed_{kRemembered};
};

}  // namespace bluecomm
