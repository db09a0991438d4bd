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

  // Returns whether this is a forked child of the process that made this object. Makes
  // no system call.
  bool in_child() const { return in_child_; }
  pid_t owner() const { return owner_; }

  // Called in a forked child, under the engine's lock.
  void enter_child() noexcept;
  Engine& engine() const { return engine_; }

 private:
  Engine& engine_;
  const pid_t owner_;
  bool in_child_ = false;  // written only in a child, which has a single thread then
};

}  // namespace bluecomm::bindings
