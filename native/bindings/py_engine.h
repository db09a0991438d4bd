#pragma once

#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/fork_guard.h"
#include "engine/engine.h"
#include "mpi/session.h"

namespace bluecomm::bindings {

// An Engine with the checks that Python callers need.
class PyEngine {
 public:
  // `mpi` may be null.
  PyEngine(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports,
           std::shared_ptr<mpi::Session> mpi)
      : rank_(config.rank),
        engine_(std::make_unique<Engine>(std::move(config), std::move(transports))),
        guard_(*engine_),
        mpi_(std::move(mpi)) {
    if (!mpi_) return;
    finalize_hook_ = mpi_->finalize_hooks().add(
        [engine = engine_.get()] { engine->release_backends(); });
  }

  ~PyEngine() {
    if (guard_.in_child()) {
      // A forked child has no progress thread, and its descriptors are already closed.
      static_cast<void>(engine_.release());
    } else if (mpi_) {
      mpi_->finalize_hooks().remove(finalize_hook_);
    }
  }
  PyEngine(const PyEngine&) = delete;
  PyEngine& operator=(const PyEngine&) = delete;

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
  const std::shared_ptr<mpi::Session> mpi_;
  mpi::FinalizeHooks::Hook finalize_hook_;
};

}  // namespace bluecomm::bindings
