#pragma once

#include <cstdint>
#include <memory>
#include <unordered_map>

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
  // Another member has removed a group, which this rank may have yet to add.
  void note_removed_by(std::uint64_t id, int rank) {
    removed_.note_removed_by(id, rank);
  }
  const RemovedGroups& removed() const { return removed_; }

 private:
  std::unordered_map<std::uint64_t, std::shared_ptr<const Group>> groups_;
  RemovedGroups removed_;
};

}  // namespace bluecomm
