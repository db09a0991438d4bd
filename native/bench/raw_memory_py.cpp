// The Python module bluecomm.bench._raw_memory, which bluecomm/bench/limit.py calls. It
// is separate from bluecomm._native, so that the product's extension contains no
// benchmark.
#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/raw_memory.h"

namespace py = pybind11;

namespace bluecomm {
namespace {

using Clock = std::chrono::steady_clock;

DType parse_dtype(const std::string& name) {
  if (const auto dtype = dtype_from_name(name)) return *dtype;
  throw std::invalid_argument("dtype '" + name + "' does not exist");
}

std::span<std::byte> memory_at(std::uintptr_t address, std::size_t nbytes) {
  return {reinterpret_cast<std::byte*>(address), nbytes};
}

// Calls `operation(deadline)` `repeats` times without the GIL and returns the seconds
// per call.
template <typename Operation>
double seconds_each(int repeats, double timeout_s, const Operation& operation) {
  const py::gil_scoped_release released;
  const auto start = Clock::now();
  const auto deadline = start + std::chrono::duration_cast<Clock::duration>(
                                    std::chrono::duration<double>(timeout_s));
  for (int i = 0; i < repeats; ++i) operation(deadline);
  const std::chrono::duration<double> taken = Clock::now() - start;
  return taken.count() / repeats;
}

double allreduce(RawMemory& memory, std::size_t nbytes, const std::string& dtype,
                 int repeats, double timeout_s) {
  const DType type = parse_dtype(dtype);
  return seconds_each(repeats, timeout_s,
                      [&](auto deadline) { memory.allreduce(nbytes, type, deadline); });
}

double combine(RawMemory& memory, std::uintptr_t output, std::size_t nbytes,
               const std::vector<std::pair<int, double>>& sources,
               const std::string& dtype, int repeats, double timeout_s) {
  const DType type = parse_dtype(dtype);
  std::vector<RawMemory::WeightedRank> list;
  for (const auto& [rank, weight] : sources) list.push_back({rank, weight});
  return seconds_each(repeats, timeout_s, [&](auto deadline) {
    memory.combine(memory_at(output, nbytes), list, type, deadline);
  });
}

double gather(RawMemory& memory, std::uintptr_t output, std::size_t nbytes,
              const std::vector<std::tuple<int, std::size_t, std::size_t>>& pieces,
              std::size_t published, std::size_t largest, int repeats,
              double timeout_s) {
  std::vector<RawMemory::ArrayRange> list;
  for (const auto& [rank, offset, size] : pieces) list.push_back({rank, offset, size});
  return seconds_each(repeats, timeout_s, [&](auto deadline) {
    memory.gather(memory_at(output, nbytes), list, published, largest, deadline);
  });
}

}  // namespace
}  // namespace bluecomm

// The signatures are those of bluecomm/bench/_raw_memory.pyi.
PYBIND11_MODULE(_raw_memory, module, py::mod_gil_not_used()) {
  using bluecomm::RawMemory;
  module.doc() = "Operations over one shared mapping, for benchmarks to compare with.";
  py::class_<RawMemory>(module, "RawMemory")
      .def(py::init<int, int, int, std::size_t>(), py::arg("fd"), py::arg("rank"),
           py::arg("world_size"), py::arg("array_nbytes"),
           py::call_guard<py::gil_scoped_release>())
      .def_static("file_nbytes", &RawMemory::file_bytes, py::arg("world_size"),
                  py::arg("array_nbytes"))
      .def_property_readonly(
          "array_address",
          [](const RawMemory& memory) {
            return reinterpret_cast<std::uintptr_t>(memory.array().data());
          })
      .def("allreduce", &bluecomm::allreduce, py::arg("nbytes"), py::arg("dtype"),
           py::kw_only(), py::arg("repeats") = 1, py::arg("timeout_s") = 60.0)
      .def("combine", &bluecomm::combine, py::arg("output_address"),
           py::arg("output_nbytes"), py::arg("sources"), py::arg("dtype"),
           py::kw_only(), py::arg("repeats") = 1, py::arg("timeout_s") = 60.0)
      .def("gather", &bluecomm::gather, py::arg("output_address"),
           py::arg("output_nbytes"), py::arg("pieces"), py::arg("published"),
           py::arg("largest"), py::kw_only(), py::arg("repeats") = 1,
           py::arg("timeout_s") = 60.0);
}
