#include <pybind11/pybind11.h>

#include "bindings/register.h"

PYBIND11_MODULE(_native, module) {
  module.doc() = "The native engine of bluecomm.";
  bluecomm::bindings::register_shared_memory(module);
  bluecomm::bindings::register_recorder(module);
  bluecomm::bindings::register_mpi(module);
  bluecomm::bindings::register_call(module);
  bluecomm::bindings::register_engine(module);
  bluecomm::bindings::register_window(module);
}
