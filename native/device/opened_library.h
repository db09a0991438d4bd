#pragma once

#include <dlfcn.h>

#include <string>

namespace bluecomm::device {

// A library that this process has opened, and the error for functions that it lacks.
template <typename Error>
struct OpenedLibrary {
  void* opened;
  const char* name;
  const char* remedy;

  // Sets `function` to a function of the library. Throws Error if there is none.
  template <typename Function>
  void find(const char* function_name, Function& function) const {
    void* const found = dlsym(opened, function_name);
    if (found == nullptr) {
      throw Error(std::string(name) + " lacks " + function_name + "; " + remedy);
    }
    function = reinterpret_cast<Function>(found);
  }
};

}  // namespace bluecomm::device
