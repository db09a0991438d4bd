#include "engine/groups.h"

#include <stdexcept>
#include <string>
#include <utility>

namespace bluecomm {

void Groups::add(Group group) {
  const std::uint64_t id = group.id;
  if (!groups_.emplace(id, std::make_shared<const Group>(std::move(group))).second) {
    throw std::invalid_argument("group " + std::to_string(id) + " already exists");
  }
}

std::shared_ptr<const Group> Groups::find(std::uint64_t id) const {
  const auto found = groups_.find(id);
  return found == groups_.end() ? nullptr : found->second;
}

void Groups::remove(std::uint64_t id) {
  if (groups_.erase(id) == 0) {
    throw std::invalid_argument("there is no group " + std::to_string(id));
  }
  removed_.add(id);
}

}  // namespace bluecomm
