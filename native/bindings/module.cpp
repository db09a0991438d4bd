#include <pybind11/pybind11.h>

#include "bindings/register.h"

namespace py = pybind11;

// The extension does not rely on the GIL for exclusion. The engine, windows, recorders
// and the allocator of shared memory have locks of their own, as Python's containers
// do. Everything else that threads share is constant.
PYBIND11_MODULE(_native, module, py::mod_gil_not_used()) {
  module.doc() = "The native engine of bluecomm.";
  bluecomm::bindings::register_shared_memory(module);
  bluecomm::bindings::register_recorder(module);
  bluecomm::bindings::register_mpi(module);
  bluecomm::bindings::register_device(module);
  bluecomm::bindings::register_nccl(module);
  bluecomm::bindings::register_call(module);
  bluecomm::bindings::register_engine(module);
  bluecomm::bindings::register_window(module);
}
