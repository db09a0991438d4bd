#pragma once

#include <sys/types.h>

#include "engine/engine.h"

namespace bluecomm::bindings {

// Frees the copy of an engine in forked children, such as the workers of a DataLoader.
// Otherwise the sockets that stay open there would hide the death of the rank.
//
// All guards share process-wide state, because fork handlers have no argument.
class ForkGuard {
 public:
  explicit ForkGuard(Engine& engine);
  ~ForkGuard();
  ForkGuard(const ForkGuard&) = delete;
  ForkGuard& operator=(const ForkGuard&) = delete;

  // Returns whether this is a forked child of the process that made this object.
  bool in_child() const;
  pid_t owner() const { return owner_; }

 private:
  Engine& engine_;
  const pid_t owner_;
};

}  // namespace bluecomm::bindings
