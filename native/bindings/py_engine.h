#pragma once

#include <bit>
#include <cstddef>
#include <memory>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "bindings/fork_guard.h"
#include "engine/engine.h"
#include "mpi/session.h"
#include "transport/tcp/options.h"

namespace bluecomm::bindings {

// An Engine with the checks that Python callers need.
class PyEngine {
 public:
  // `limits` are those of the transports' links. `mpi` may be null.
  PyEngine(EngineConfig config, std::vector<std::unique_ptr<Transport>> transports,
           std::shared_ptr<stream::SendingLimits> limits,
           std::shared_ptr<mpi::Session> mpi)
      : rank_(config.rank),
        limits_(std::move(limits)),
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

  // See stream::SendingLimits. Throws std::invalid_argument for values that it does not
  // allow.
  void limit_sending(int streams, std::size_t chunk_nbytes) {
    if (streams < 1 || streams > stream::kMaxStreams) {
      throw std::invalid_argument("streams must be in 1 .. 16, got " +
                                  std::to_string(streams));
    }
    const bool is_size = std::has_single_bit(chunk_nbytes) &&
                         chunk_nbytes >= stream::kAlignment &&
                         chunk_nbytes <= stream::kSegment;
    if (chunk_nbytes != 0 && !is_size) {
      throw std::invalid_argument(
          "chunk_nbytes must be 0 or a power of two in 64 .. 262144, got " +
          std::to_string(chunk_nbytes));
    }
    limits_->streams = static_cast<std::size_t>(streams);
    limits_->chunk = chunk_nbytes;
  }

 private:
  const int rank_;
  const std::shared_ptr<stream::SendingLimits> limits_;
  std::unique_ptr<Engine> engine_;
  ForkGuard guard_;
  const std::shared_ptr<mpi::Session> mpi_;
  mpi::FinalizeHooks::Hook finalize_hook_;
};

}  // namespace bluecomm::bindings
