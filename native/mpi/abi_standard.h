#pragma once

#include <bit>
#include <cstdint>
#include <string_view>

#include "mpi/symbols.h"

namespace bluecomm::mpi {

// The standard ABI of MPI 5.0, which the libmpi_abi.so of any implementation has.
// Handles are pointers; the predefined ones have small numbers.
class StandardAbi {
 public:
  static constexpr std::string_view kName = "MPI standard ABI";

  using Comm = struct StandardComm*;
  using Datatype = struct StandardDatatype*;
  using Errhandler = struct StandardErrhandler*;
  using Request = struct StandardRequest*;
  struct MpiStatus {
    int source;
    int tag;
    int error;
    int internal[5];
  };
  using CommFromFortran = Comm (*)(int);

  static constexpr int kSuccess = 0;
  static constexpr int kAnySource = -1;
  static constexpr int kSingle = 0;
  static constexpr int kFunneled = 1024;
  static constexpr int kSerialized = 2048;
  static constexpr int kMultiple = 4096;
  static constexpr int kErrorStringBytes = 512;
  static constexpr int kVersionStringBytes = 8192;

  static constexpr std::uintptr_t kCommWorld = 0x101;
  static constexpr std::uintptr_t kCommSelf = 0x102;
  static constexpr std::uintptr_t kCommNull = 0x100;
  static constexpr std::uintptr_t kByte = 0x247;
  static constexpr std::uintptr_t kErrorsReturn = 0x143;
  static constexpr const char* kFromFortran = "MPI_Comm_fromint";

  explicit StandardAbi(void* library)
      : from_fortran_(function<CommFromFortran>(library, kFromFortran)) {}

  static Comm comm_world() { return std::bit_cast<Comm>(kCommWorld); }
  static Comm comm_self() { return std::bit_cast<Comm>(kCommSelf); }
  static Comm comm_null() { return std::bit_cast<Comm>(kCommNull); }
  static Datatype byte() { return std::bit_cast<Datatype>(kByte); }
  static Errhandler errors_return() { return std::bit_cast<Errhandler>(kErrorsReturn); }
  Comm from_fortran(int handle) const { return from_fortran_(handle); }

 private:
  CommFromFortran from_fortran_;
};

}  // namespace bluecomm::mpi
