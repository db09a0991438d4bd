#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <string>

#include "common/recent.h"

namespace bluecomm {

// The ids of the groups that ranks have removed last. Messages of members that have
// not removed them may still arrive. Guarded by the engine's progress lock.
class RemovedGroups {
 public:
  // This rank has removed a group, which has no calls here any more.
  void add(std::uint64_t id) {
    ids_.insert(id, true);
    removers_.erase(id);
  }
  // Returns whether the group was among the last kRemembered that this rank has
  // removed.
  bool contains(std::uint64_t id) const { return ids_.contains(id); }
  // Another member has removed a group, which this rank may have yet to add.
  void note_removed_by(std::uint64_t id, int rank) {
    if (contains(id)) return;
    removers_.insert(id, std::make_shared<std::set<int>>());
    (*removers_.find(id))->insert(rank);
  }
  // Returns the other members that have removed the group; null if none has.
  const std::set<int>* removers(std::uint64_t id) const {
    const std::shared_ptr<std::set<int>>* const found = removers_.find(id);
    return found == nullptr ? nullptr : found->get();
  }

 private:
  static constexpr std::size_t kRemembered = 1024;

  RecentMap<std::uint64_t, bool, std::hash<std::uint64_t>> ids_{kRemembered};
  RecentMap<std::uint64_t, std::shared_ptr<std::set<int>>, std::hash<std::uint64_t>>
      removers_{kRemembered};
};

// Returns the reason why a request of a group fails that a rank has removed.
inline std::string removed_by_text(const std::string& rank) {
  return "cut short, because " + rank + " has freed the process set";
}

}  // namespace bluecomm
