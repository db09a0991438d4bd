#pragma once

#include <dlfcn.h>

#include <stdexcept>
#include <string>

namespace bluecomm::mpi {

// Returns the address of `name` in a loaded library. Throws std::runtime_error if the
// library lacks it.
inline void* symbol(void* library, const char* name) {
  void* const found = dlsym(library, name);
  if (found == nullptr) throw std::runtime_error(std::string("it lacks ") + name);
  return found;
}

template <typename Function>
Function function(void* library, const char* name) {
  return reinterpret_cast<Function>(symbol(library, name));
}

}  // namespace bluecomm::mpi
