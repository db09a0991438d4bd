#include "engine/leaving.h"

#include <algorithm>
#include <utility>

#include "common/never_free.h"

namespace bluecomm {

void Leaving::add(std::shared_ptr<Operation> operation) {
  list_.push_back({std::move(operation), {}});
}

bool Leaving::keep(const Operation& operation, Result result) {
  const auto found = std::find_if(list_.begin(), list_.end(), [&](const One& one) {
    return one.operation.get() == &operation;
  });
  if (found == list_.end()) return false;
  found->result = std::move(result);
  return true;
}

std::vector<RequestId> Leaving::take_free() {
  std::vector<RequestId> ids;
  std::erase_if(list_, [&](const One& one) {
    if (one.operation->holds_memory()) return false;
    ids.push_back(one.operation->id());
    return true;
  });
  return ids;
}

std::vector<RequestId> Leaving::ids() const {
  std::vector<RequestId> ids;
  ids.reserve(list_.size());
  for (const One& one : list_) ids.push_back(one.operation->id());
  return ids;
}

void Leaving::never_free() const {
  for (const One& one : list_) bluecomm::never_free(one);
}

}  // namespace bluecomm
