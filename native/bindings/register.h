#pragma once

#include <pybind11/pybind11.h>

// Registers the classes of each file in this folder with the Python module. Their
// Python signatures are in bluecomm/_native.pyi.

namespace bluecomm::bindings {

void register_shared_memory(pybind11::module_& module);
void register_recorder(pybind11::module_& module);
void register_mpi(pybind11::module_& module);
void register_device(pybind11::module_& module);
void register_nccl(pybind11::module_& module);  // after register_device()
void register_call(pybind11::module_& module);
void register_engine(pybind11::module_& module);
void register_window(pybind11::module_& module);

}  // namespace bluecomm::bindings
