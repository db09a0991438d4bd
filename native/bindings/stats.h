#pragma once

#include <pybind11/pybind11.h>

#include "engine/dispatcher.h"

namespace bluecomm::bindings {

// Returns EngineCounters of bluecomm/_native.pyi.
pybind11::dict to_dict(const Stats& stats);

}  // namespace bluecomm::bindings
