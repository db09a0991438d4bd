#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "bench/raw_memory.h"
#include "bindings/arguments.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

// Calls `operation(deadline)` so many times; returns seconds per call.
template <typename Operation>
double seconds_each(int repeats, double timeout_s, const Operation& operation) {
  const ReleaseGil released;
  const auto deadline = deadline_after(timeout_s);
  const auto start = std::chrono::steady_clock::now();
  for (int i = 0; i < repeats; ++i) operation(deadline);
  const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
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
  std::vector<RawMemory::Source> list;
  for (const auto& [rank, weight] : sources) list.push_back({rank, weight});
  return seconds_each(repeats, timeout_s, [&](auto deadline) {
    memory.combine(memory_at(output, nbytes), list, type, deadline);
  });
}

double gather(RawMemory& memory, std::uintptr_t output, std::size_t nbytes,
              const std::vector<std::tuple<int, std::size_t, std::size_t>>& pieces,
              std::size_t published, std::size_t largest, int repeats,
              double timeout_s) {
  std::vector<RawMemory::Piece> list;
  for (const auto& [rank, offset, size] : pieces) list.push_back({rank, offset, size});
  return seconds_each(repeats, timeout_s, [&](auto deadline) {
    memory.gather(memory_at(output, nbytes), list, published, largest, deadline);
  });
}

}  // namespace

void register_raw_memory(py::module_& module) {
  py::class_<RawMemory>(module, "RawMemory")
      .def(py::init<int, int, int, std::size_t>(), py::arg("fd"), py::arg("rank"),
           py::arg("world_size"), py::arg("array_nbytes"), py::call_guard<ReleaseGil>())
      .def_static("file_nbytes", &RawMemory::file_bytes, py::arg("world_size"),
                  py::arg("array_nbytes"))
      .def_property_readonly(
          "array_address",
          [](const RawMemory& memory) {
            return reinterpret_cast<std::uintptr_t>(memory.array().data());
          })
      .def("allreduce", &allreduce, py::arg("nbytes"), py::arg("dtype"), py::kw_only(),
           py::arg("repeats") = 1, py::arg("timeout_s") = 60.0)
      .def("combine", &combine, py::arg("output_address"), py::arg("output_nbytes"),
           py::arg("sources"), py::arg("dtype"), py::kw_only(), py::arg("repeats") = 1,
           py::arg("timeout_s") = 60.0)
      .def("gather", &gather, py::arg("output_address"), py::arg("output_nbytes"),
           py::arg("pieces"), py::arg("published"), py::arg("largest"), py::kw_only(),
           py::arg("repeats") = 1, py::arg("timeout_s") = 60.0);
}

}  // namespace bluecomm::bindings
