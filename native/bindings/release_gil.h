#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace bluecomm::bindings {

// Releases the GIL for its scope.
//
// Unlike pybind11's guard, it does not terminate the process if the interpreter shuts
// down while a daemon thread is inside this scope. Before version 3.14, Python makes
// such a thread exit when it requests the GIL, by unwinding its stack, which is fatal
// inside a destructor. This class parks the thread instead, as Python 3.14 does.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { take(); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

  // Takes the GIL briefly to run Python's signal handlers. Returns whether one has
  // raised.
  bool check_signals() {
    take();
    const bool raised = PyErr_CheckSignals() != 0;
    state_ = PyEval_SaveThread();
    return raised;
  }

 private:
  void take() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      while (true) pause();
    }
  }

  PyThreadState* state_;
};

}  // namespace bluecomm::bindings
