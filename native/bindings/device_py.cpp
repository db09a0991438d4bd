#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/byte_buffer.h"
#include "bindings/py_cuda_device.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/gate.h"
#include "device/copy_in_parts.h"
#include "device/cuda_device.h"
#include "device/ipc_memory.h"
#include "device/pinned_memory.h"
#include "device/stream_point.h"
#include "trace/recorder.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

using device::CudaDevice;
using device::CudaIpcHandle;
using device::CudaStream;
using device::ExportedMemory;
using device::MappedMemory;
using device::PinnedBlock;
using device::PinnedMemory;
using device::StreamPoint;

// A block that Python owns. It keeps the GIL unless the block goes back to the system.
struct PyPinnedBlock {
  explicit PyPinnedBlock(std::unique_ptr<PinnedBlock> own) : block(std::move(own)) {}
  ~PyPinnedBlock() {
    if (block->reuse()) return;
    const ReleaseGil unlocked;
    block.reset();
  }
  PyPinnedBlock(const PyPinnedBlock&) = delete;
  PyPinnedBlock& operator=(const PyPinnedBlock&) = delete;

  std::unique_ptr<PinnedBlock> block;
};

std::unique_ptr<PyCudaDevice> open_device(const std::string& library, int ordinal) {
  auto opened = std::make_shared<CudaDevice>(device::open_driver(library), ordinal);
  auto memory = std::make_shared<PinnedMemory>(opened);
  return std::make_unique<PyCudaDevice>(
      PyCudaDevice{std::move(opened), std::move(memory)});
}

CudaStream to_stream(std::uintptr_t handle) {
  return reinterpret_cast<CudaStream>(handle);
}

std::shared_ptr<Gate> copy_to_host(PyCudaDevice& self, std::uint64_t from,
                                   std::uintptr_t to, std::size_t nbytes,
                                   const std::vector<std::uintptr_t>& streams) {
  std::vector<CudaStream> all;
  for (const std::uintptr_t one : streams) all.push_back(to_stream(one));
  return self.device->copy_to_host(from, memory_at(to, nbytes), all);
}

std::shared_ptr<StreamPoint> copy_to_device(PyCudaDevice& self, std::uintptr_t from,
                                            std::uint64_t to, std::size_t nbytes,
                                            std::uintptr_t stream) {
  return self.device->copy_to_device(memory_at(from, nbytes), to, to_stream(stream));
}

std::unique_ptr<MappedMemory> map_memory(PyCudaDevice& self, std::string_view handle) {
  CudaIpcHandle wanted{};
  if (handle.size() != wanted.bytes.size()) {
    throw std::invalid_argument("a handle of CUDA has " +
                                std::to_string(wanted.bytes.size()) + " bytes, got " +
                                std::to_string(handle.size()));
  }
  std::memcpy(wanted.bytes.data(), handle.data(), handle.size());
  return std::make_unique<MappedMemory>(self.device, wanted);
}

}  // namespace

void register_device(py::module_& module) {
  using py::arg;
  module.def("copy_part_nbytes", &device::part_of, arg("nbytes"));
  py::class_<Gate, std::shared_ptr<Gate>>(module, "Gate")
      .def("poll", [](Gate& self) -> std::optional<Status> {
        const ReleaseGil unlocked;
        return self.poll();
      });
  py::class_<FailedGate, Gate, std::shared_ptr<FailedGate>>(module, "FailedGate")
      .def(py::init([](std::string text) {
             return std::make_shared<FailedGate>(
                 Status{Code::kInternal, std::move(text), -1});
           }),
           arg("text"));
  py::class_<StreamPoint, Gate, std::shared_ptr<StreamPoint>>(module, "StreamPoint");
  py::class_<PyPinnedBlock>(module, "PinnedBlock", py::buffer_protocol())
      .def_buffer([](PyPinnedBlock& self) { return byte_buffer(self.block->bytes()); });
  py::class_<ExportedMemory>(module, "ExportedMemory")
      .def_property_readonly("address", &ExportedMemory::address)
      .def_property_readonly("handle",
                             [](const ExportedMemory& self) {
                               const auto& bytes = self.handle().bytes;
                               return py::bytes(bytes.data(), bytes.size());
                             })
      .def("free", &ExportedMemory::free, py::call_guard<ReleaseGil>());
  py::class_<MappedMemory>(module, "MappedMemory")
      .def_property_readonly("address", &MappedMemory::address)
      .def("close", &MappedMemory::close, py::call_guard<ReleaseGil>());
  py::class_<PyCudaDevice>(module, "CudaDevice")
      .def(py::init(&open_device), arg("library"), arg("ordinal"),
           py::call_guard<ReleaseGil>())
      .def(
          "allocate",
          [](PyCudaDevice& self, std::size_t nbytes) {
            return std::make_unique<PyPinnedBlock>(self.memory->allocate(nbytes));
          },
          arg("nbytes"), py::call_guard<ReleaseGil>())
      .def("copy_to_host", &copy_to_host, arg("source"), arg("address"), arg("nbytes"),
           arg("streams"), py::call_guard<ReleaseGil>())
      .def(
          "copy_on_device",
          [](PyCudaDevice& self, std::uint64_t from, std::uint64_t to,
             std::size_t nbytes, std::uintptr_t stream) {
            self.device->copy_on_device(from, to, nbytes, to_stream(stream));
          },
          arg("source"), arg("destination"), arg("nbytes"), arg("stream"),
          py::call_guard<ReleaseGil>())
      .def(
          "export_memory",
          [](PyCudaDevice& self, std::size_t nbytes) {
            return std::make_unique<ExportedMemory>(self.device, nbytes);
          },
          arg("nbytes"), py::call_guard<ReleaseGil>())
      .def(
          "name_rank",
          [](PyCudaDevice& self, int rank) { self.device->name_rank(rank); },
          arg("rank"))
      .def("map_memory", &map_memory, arg("handle"), py::call_guard<ReleaseGil>())
      .def("copy_to_device", &copy_to_device, arg("address"), arg("destination"),
           arg("nbytes"), arg("stream"), py::call_guard<ReleaseGil>())
      .def(
          "point_behind",
          [](PyCudaDevice& self, std::uintptr_t stream) {
            return self.device->point_behind(to_stream(stream));
          },
          arg("stream"), py::call_guard<ReleaseGil>())
      .def(
          "wait_for",
          [](PyCudaDevice& self, const StreamPoint& point, std::uintptr_t stream) {
            self.device->wait_for(point, to_stream(stream));
          },
          arg("point"), arg("stream"), py::call_guard<ReleaseGil>())
      .def(
          "start_trace",
          [](PyCudaDevice& self, std::shared_ptr<Recorder> recorder) {
            self.device->start_trace(std::move(recorder));
          },
          arg("recorder"), py::call_guard<ReleaseGil>())
      .def(
          "collect_trace",
          [](PyCudaDevice& self) { return self.device->collect_trace(); },
          py::call_guard<ReleaseGil>())
      .def(
          "stop_trace", [](PyCudaDevice& self) { self.device->stop_trace(); },
          py::call_guard<ReleaseGil>())
      .def("work", [](const PyCudaDevice& self) {
        py::dict all;
        for (const auto& [kind, one] : self.device->work()) {
          all[py::str(kind)] = py::make_tuple(one.count, one.nbytes, one.ns);
        }
        return all;
      });
}

}  // namespace bluecomm::bindings
