#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/fork_guard.h"
#include "engine/engine.h"

namespace bluecomm::bindings {

// An Engine, with the checks that Python callers need.
class PyEngine {
 public:
  PyEngine(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports)
      : rank_(config.rank),
        engine_(std::make_unique<Engine>(std::move(config), std::move(transports))),
        guard_(*engine_) {}

  ~PyEngine() {
    // A fork has neither the thread nor the fds that the destructor would end.
    if (guard_.in_child()) static_cast<void>(engine_.release());
  }

  Engine& use() const {
    if (guard_.in_child()) {
      throw std::runtime_error("this is a fork of rank " + std::to_string(rank_) +
                               " (pid " + std::to_string(guard_.owner()) +
                               "); only the rank itself communicates");
    }
    return *engine_;
  }

  bool in_child() const { return guard_.in_child(); }

 private:
  const int rank_;
  std::unique_ptr<Engine> engine_;
  ForkGuard guard_;
};

}  // namespace bluecomm::bindings
