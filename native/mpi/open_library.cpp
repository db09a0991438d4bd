#include <dlfcn.h>
#include <link.h>

#include <stdexcept>
#include <string>
#include <string_view>

#include "mpi/abi_mpich.h"
#include "mpi/abi_openmpi.h"
#include "mpi/abi_standard.h"
#include "mpi/bound.h"
#include "mpi/library.h"

namespace bluecomm::mpi {
namespace {

// Returns the name of the library's file. Follows symbolic links, because libmpi.so
// may point to any implementation.
std::string file_name(void* library) {
  const link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return "";
  const std::string path = map->l_name;
  return path.substr(path.rfind('/') + 1);
}

// Accepts names with or without version numbers.
bool is_libmpi(std::string_view path) {
  const std::size_t slash = path.rfind('/');
  if (slash == std::string_view::npos) return false;
  const std::string_view name = path.substr(slash + 1);
  for (const std::string_view stem : {"libmpi.so", "libmpich.so", "libmpi_abi.so"}) {
    if (name.starts_with(stem) &&
        name.find_first_not_of(".0123456789", stem.size()) == std::string_view::npos) {
      return true;
    }
  }
  return false;
}

std::shared_ptr<Library> bind(void* library) {
  // Tests the name first: a standard library may be built on top of the
  // implementation's own.
  if (file_name(library).starts_with("libmpi_abi")) {
    return std::make_shared<BoundLibrary<StandardAbi>>(library);
  }
  if (dlsym(library, OpenMpiAbi::kCommWorld) != nullptr) {
    return std::make_shared<BoundLibrary<OpenMpiAbi>>(library);
  }
  // MPICH and its derivatives name themselves in their version text, which can be
  // asked for without using a handle.
  auto mpich = std::make_shared<BoundLibrary<MpichAbi>>(library);
  const std::string version = mpich->version();
  for (const char* kin : {"MPICH", "Intel(R) MPI", "MVAPICH"}) {
    if (version.find(kin) != std::string::npos) return mpich;
  }
  throw std::runtime_error(
      "it calls itself '" + version +
      "', which is neither Open MPI nor MPICH nor derived from MPICH");
}

}  // namespace

std::shared_ptr<Library> open_library(const std::string& path) {
  // Global, because plugins that Open MPI loads look up its symbols there.
  void* const library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) throw std::runtime_error(dlerror());
  try {
    return bind(library);
  } catch (const std::exception& error) {
    const std::string text = path + ": " + error.what();
    dlclose(library);
    throw std::runtime_error(text);
  }
}

std::vector<std::string> loaded_libraries() {
  std::vector<std::string> paths;
  dl_iterate_phdr(
      [](dl_phdr_info* info, std::size_t, void* found) {
        if (is_libmpi(info->dlpi_name)) {
          static_cast<std::vector<std::string>*>(found)->push_back(info->dlpi_name);
        }
        return 0;
      },
      &paths);
  return paths;
}

}  // namespace bluecomm::mpi
