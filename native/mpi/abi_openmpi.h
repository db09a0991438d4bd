#pragma once

#include <cstddef>
#include <string_view>

#include "mpi/symbols.h"

namespace bluecomm::mpi {

// The ABI of Open MPI 3 to 5. Handles are pointers to objects inside the library.
class OpenMpiAbi {
 public:
  static constexpr std::string_view kName = "Open MPI";

  using Comm = void*;
  using Datatype = void*;
  using Errhandler = void*;
  using Request = void*;
  struct MpiStatus {
    int source;
    int tag;
    int error;
    int cancelled;
    std::size_t count;
  };
  using CommFromFortran = Comm (*)(int);

  static constexpr int kSuccess = 0;
  static constexpr int kAnySource = -1;
  static constexpr int kSingle = 0;
  static constexpr int kFunneled = 1;
  static constexpr int kSerialized = 2;
  static constexpr int kMultiple = 3;
  static constexpr int kErrorStringBytes = 256;
  static constexpr int kVersionStringBytes = 256;

  static constexpr const char* kCommWorld = "ompi_mpi_comm_world";
  static constexpr const char* kCommSelf = "ompi_mpi_comm_self";
  static constexpr const char* kCommNull = "ompi_mpi_comm_null";
  static constexpr const char* kByte = "ompi_mpi_byte";
  static constexpr const char* kErrorsReturn = "ompi_mpi_errors_return";
  static constexpr const char* kFromFortran = "MPI_Comm_f2c";

  explicit OpenMpiAbi(void* library)
      : comm_world_(symbol(library, kCommWorld)),
        comm_self_(symbol(library, kCommSelf)),
        comm_null_(symbol(library, kCommNull)),
        byte_(symbol(library, kByte)),
        errors_return_(symbol(library, kErrorsReturn)),
        from_fortran_(function<CommFromFortran>(library, kFromFortran)) {}

  Comm comm_world() const { return comm_world_; }
  Comm comm_self() const { return comm_self_; }
  Comm comm_null() const { return comm_null_; }
  Datatype byte() const { return byte_; }
  Errhandler errors_return() const { return errors_return_; }
  Comm from_fortran(int handle) const { return from_fortran_(handle); }

 private:
  Comm comm_world_;
  Comm comm_self_;
  Comm comm_null_;
  Datatype byte_;
  Errhandler errors_return_;
  CommFromFortran from_fortran_;
};

}  // namespace bluecomm::mpi
