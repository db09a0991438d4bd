#pragma once

#include <pybind11/pybind11.h>

#include <utility>

#include "bindings/release_gil.h"
#include "request/base_request.h"

// Python keeps the objects that a request uses in a table, by the request's id. These
// functions start a request without the GIL and enter `keep` in the table `kept`,
// before a signal handler can raise. They return the id, or 0 if the request has ended.

namespace bluecomm::bindings {

// For a caller that waits for the request immediately.
template <typename Start>
RequestId keep_blocking(pybind11::dict& kept, const pybind11::object& keep,
                        Start&& start) {
  RequestId id = 0;
  {
    const ReleaseGil unlocked;
    id = std::forward<Start>(start)();
  }
  if (id != 0) kept[pybind11::int_(id)] = keep;
  return id;
}

// For a caller that does not wait. Calls `start` with the new id `id`. The request may
// end at once and be reported as finished to another thread, so it is entered before it
// starts.
template <typename Start>
RequestId keep_nonblocking(pybind11::dict& kept, const pybind11::object& keep,
                           RequestId id, Start&& start) {
  const pybind11::int_ key(id);
  const auto drop = [&] {
    if (PyDict_DelItem(kept.ptr(), key.ptr()) != 0) PyErr_Clear();
  };
  kept[key] = keep;
  RequestId started = 0;
  try {
    const ReleaseGil unlocked;
    started = std::forward<Start>(start)(id);
  } catch (...) {
    drop();
    throw;
  }
  if (started == 0) drop();
  return started;
}

}  // namespace bluecomm::bindings
