#pragma once

#include <cstddef>
#include <memory>

#include "mpi/session.h"

namespace bluecomm {

struct MpiOptions {
  int rank = 0;                           // in the engine's world
  std::shared_ptr<mpi::Session> session;  // its thread level is serialized or more
  std::size_t eager_bytes = 4096;
};

}  // namespace bluecomm
