#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <unordered_map>

#include "common/recent.h"
#include "engine/call.h"
#include "request/removed_groups.h"

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
  bool was_removed(std::uint64_t id) const { return removed_.contains(id); }
  const RemovedGroups& removed() const { return removed_; }
  // Another member has removed a group, which this rank may have yet to add.
  void note_removed_by(std::uint64_t id, int rank);
  // Returns the members that have removed the group; null if none has.
  const std::set<int>* removers(std::uint64_t id) const;

 private:
  // Groups of which removals by other members are remembered.
  static constexpr std::size_t kRemembered = 1024;

  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> groups_;
  RemovedGroups removed_;
  RecentMap<std::uint64_t, std::shared_ptr<std::set<int>>, std::hash<std::uint64_t>>
      removers_{kRemembered};
};

}  // namespace bluecomm
