#pragma once

#include <cstddef>
#include <memory>

#include "mpi/session.h"

namespace bluecomm {

struct MpiOptions {
  int rank = 0;                           // in the engine's world
  std::shared_ptr<mpi::Session> session;  // with thread level serialized or higher
  std::size_t eager_bytes = 4096;
};

}  // namespace bluecomm
