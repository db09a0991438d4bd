#pragma once

#include <sys/types.h>

#include "engine/engine.h"

namespace bluecomm::bindings {

// Keeps an engine from living on in forked children, such as the workers of a
// DataLoader, where its open sockets would hide the death of the rank.
//
// The one place with process-wide state: fork handlers have no argument.
class ForkGuard {
 public:
  explicit ForkGuard(Engine& engine);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // True in a child of the process that made this object.
  bool in_child() const;
  pid_t owner() const { return owner_; }

 private:
  Engine& engine_;
  const pid_t owner_;
};

}  // namespace bluecomm::bindings
