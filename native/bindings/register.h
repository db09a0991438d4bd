#pragma once

#include <pybind11/pybind11.h>

// What each file of this folder adds to the module; bluecomm/_native.pyi is the same in
// Python's words.

namespace bluecomm::bindings {

void register_shared_memory(pybind11::module_& module);
void register_recorder(pybind11::module_& module);
void register_mpi(pybind11::module_& module);
void register_call(pybind11::module_& module);
void register_engine(pybind11::module_& module);
void register_window(pybind11::module_& module);

}  // namespace bluecomm::bindings
