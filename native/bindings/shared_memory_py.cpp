#include <pybind11/pybind11.h>

#include <cstddef>
#include <cstdint>
#include <memory>

#include "bindings/byte_buffer.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/shared_memory.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

std::uintptr_t address_of(const SharedBlock& block) {
  return reinterpret_cast<std::uintptr_t>(block.bytes().data());
}

}  // namespace

void register_shared_memory(py::module_& module) {
  // A block owns a reference to its allocator, so py::keep_alive is not needed.
  py::class_<SharedBlock, std::shared_ptr<SharedBlock>>(module, "SharedBlock",
                                                        py::buffer_protocol())
      .def_property_readonly("address", &address_of)
      .def_property_readonly(
          "nbytes", [](const SharedBlock& block) { return block.bytes().size(); })
      .def_buffer([](SharedBlock& block) { return byte_buffer(block.bytes()); });

  py::class_<SharedMemory, std::shared_ptr<SharedMemory>>(module, "SharedMemory")
      .def(py::init<>())
      .def(
          "allocate",
          [](SharedMemory& memory, std::size_t nbytes) {
            return std::make_shared<SharedBlock>(memory.allocate(nbytes));
          },
          py::arg("nbytes"), py::call_guard<ReleaseGil>())
      .def(
          "contains",
          [](const SharedMemory& memory, std::uintptr_t address, std::size_t nbytes) {
            const auto* data = reinterpret_cast<const std::byte*>(address);
            return memory.find({data, nbytes}).has_value();
          },
          py::arg("address"), py::arg("nbytes"));
}

}  // namespace bluecomm::bindings
