#include <pybind11/pybind11.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>

#include "bindings/register.h"
#include "trace/recorder.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

std::shared_ptr<Recorder> make_recorder(const std::string& path, std::size_t nbytes,
                                        int rank, int size) {
  try {
    return std::make_shared<Recorder>(path, nbytes, rank, size);
  } catch (const std::system_error& error) {
    PyErr_SetString(PyExc_OSError, error.what());
    throw py::error_already_set();
  }
}

void mark(Recorder& self, EventType type, std::string_view activity,
          std::string_view tensor) {
  // A forked child shares the mapped file, but must not record events as the rank.
  if (::getpid() != self.owner()) return;
  Event event;
  event.type = type;
  event.begin_ns = to_ns(std::chrono::steady_clock::now());
  event.end_ns = event.begin_ns;
  event.name = self.name(activity);
  event.label = self.name(tensor);
  event.thread = Recorder::thread();
  self.add(event);
}

}  // namespace

void register_recorder(py::module_& module) {
  using py::arg;
  py::class_<Recorder, std::shared_ptr<Recorder>>(module, "Recorder")
      .def(py::init(&make_recorder), py::kw_only(), arg("path"), arg("nbytes"),
           arg("rank"), arg("size"))
      .def(
          "begin",
          [](Recorder& self, std::string_view activity, std::string_view tensor) {
            mark(self, EventType::kBegin, activity, tensor);
          },
          arg("activity"), arg("tensor") = "")
      .def(
          "end",
          [](Recorder& self, std::string_view tensor, std::string_view activity) {
            mark(self, EventType::kEnd, activity, tensor);
          },
          arg("tensor") = "", arg("activity") = "");
}

}  // namespace bluecomm::bindings
