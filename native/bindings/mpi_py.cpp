#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <chrono>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "bindings/arguments.h"
#include "bindings/register.h"
#include "bindings/release_gil.h"
#include "common/mutex.h"
#include "mpi/session.h"

namespace py = pybind11;

namespace bluecomm::bindings {
namespace {

using mpi::ExchangedRecords;
using mpi::Library;
using mpi::Session;
using mpi::ThreadLevel;

const char* name_of(ThreadLevel threads) {
  switch (threads) {
    case ThreadLevel::kSingle:
      return "single";
    case ThreadLevel::kFunneled:
      return "funneled";
    case ThreadLevel::kSerialized:
      return "serialized";
    case ThreadLevel::kMultiple:
      return "multiple";
  }
  return "";
}

// Calls `body` without the GIL.
template <typename Body>
auto unlocked(Body&& body) {
  const ReleaseGil released;
  return body();
}

// Calls the Python function `late` if the object lives longer than `limit_s`, while the
// guarded call goes on: MPI_Init and MPI_Finalize wait for all ranks and have no
// deadline. Uses a native thread, because Python starts none once the interpreter is
// shutting down.
class LateCallTimer {
 public:
  LateCallTimer(double limit_s, const py::function& late)
      : thread_([this, deadline = deadline_after(limit_s), &late] {
          if (!wait_until(deadline)) call(late);
        }) {}
  // Must be called without the GIL.
  ~LateCallTimer() {
    {
      const LockGuard lock(mutex_);
      is_done_ = true;
    }
    done_.notify_one();
    thread_.join();
  }
  LateCallTimer(const LateCallTimer&) = delete;
  LateCallTimer& operator=(const LateCallTimer&) = delete;

 private:
  // Returns true if the guarded call has ended by `deadline`.
  bool wait_until(std::chrono::steady_clock::time_point deadline) {
    UniqueLock lock(mutex_);
    while (!is_done_) {
      if (done_.wait_until(lock, deadline) == std::cv_status::timeout) break;
    }
    return is_done_;
  }

  static void call(const py::function& late) {
    const py::gil_scoped_acquire acquired;
    try {
      late();
    } catch (py::error_already_set& error) {
      error.discard_as_unraisable("the warning about a slow MPI call");
    }
  }

  Mutex mutex_;
  ConditionVariable done_;
  bool is_done_ GUARDED_BY(mutex_) = false;
  std::thread thread_;  // declared after everything that it uses
};

template <typename Body>
auto watched(double limit_s, const py::function& late, Body&& body) {
  const ReleaseGil released;
  const LateCallTimer timer(limit_s, late);
  return body();
}

py::object open_session(const std::shared_ptr<Library>& library,
                        std::optional<int> fortran, double timeout_s) {
  std::shared_ptr<Session> session;
  std::vector<int> missing;
  {
    ReleaseGil released;
    auto communicator = fortran ? library->from_fortran(*fortran) : library->world();
    session = Session::open(
        library, std::move(communicator), deadline_after(timeout_s),
        [&released] { return released.check_signals(); }, missing);
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  if (session) return py::cast(session);
  return py::cast(missing);
}

py::tuple exchange(Session& self, const py::bytes& record, double timeout_s) {
  ExchangedRecords all;
  const std::string mine = record;
  {
    ReleaseGil released;
    all = self.exchange(mine, deadline_after(timeout_s),
                        [&released] { return released.check_signals(); });
  }
  if (PyErr_Occurred() != nullptr) throw py::error_already_set();
  py::list records;
  for (const std::string& one : all.records) records.append(py::bytes(one));
  return py::make_tuple(records, all.missing);
}

}  // namespace

void register_mpi(py::module_& module) {
  using py::arg;
  module.def("loaded_mpi_libraries", &mpi::loaded_libraries);

  py::class_<Library, std::shared_ptr<Library>>(module, "MpiLibrary")
      .def(py::init([](const std::string& path) {
             return unlocked([&] { return mpi::open_library(path); });
           }),
           arg("path"))
      .def_property_readonly("abi", &Library::abi)
      .def_property_readonly("version", &Library::version)
      .def_property_readonly("initialized", &Library::initialized)
      .def_property_readonly("finalized", &Library::finalized)
      .def_property_readonly("on_main_thread", &Library::on_main_thread)
      .def_property_readonly("threads",
                             [](Library& self) { return name_of(self.thread_level()); })
      .def_property_readonly("world_size",
                             [](Library& self) { return self.world()->size(); })
      .def(
          "init",
          [](Library& self, double limit_s, const py::function& late) {
            return name_of(watched(limit_s, late,
                                   [&] { return self.init(ThreadLevel::kMultiple); }));
          },
          arg("limit_s"), arg("late"))
      .def(
          "finalize",
          [](Library& self, double limit_s, const py::function& late) {
            watched(limit_s, late, [&] { self.finalize(); });
          },
          arg("limit_s"), arg("late"))
      .def("open_session", &open_session, arg("communicator"), arg("timeout_s"));

  py::class_<Session, std::shared_ptr<Session>>(module, "MpiSession")
      .def_property_readonly("rank",
                             [](Session& self) { return self.communicator().rank(); })
      .def_property_readonly("size",
                             [](Session& self) { return self.communicator().size(); })
      .def("exchange", &exchange, arg("record"), arg("timeout_s"));
}

}  // namespace bluecomm::bindings
