#pragma once

#include <cxxabi.h>
#include <pybind11/pybind11.h>
#include <unistd.h>

namespace bluecomm::bindings {

// Releases the GIL for its scope.
//
// Unlike pybind11's guard it does not end the process when the interpreter ends while a
// daemon thread is in here: until 3.14 Python lets such a thread exit as it asks for
// the GIL, by unwinding its stack, and a destructor must not be unwound. It is parked
// instead, as Python 3.14 does, and goes with the process.
class ReleaseGil {
 public:
  ReleaseGil() : state_(PyEval_SaveThread()) {}
  ~ReleaseGil() { take(); }
  ReleaseGil(const ReleaseGil&) = delete;
  ReleaseGil& operator=(const ReleaseGil&) = delete;

  // Takes the GIL for a moment to run Python's signal handlers. True if one has raised.
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
