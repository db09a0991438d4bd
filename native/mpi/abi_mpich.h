#pragma once

#include <string_view>

namespace bluecomm::mpi {

// The ABI of MPICH since 3.1 and of the implementations that keep it (Intel MPI,
// MVAPICH, Cray MPICH). Handles are integers, the same as Fortran's.
class MpichAbi {
 public:
  static constexpr std::string_view kName = "MPICH";

  using Comm = int;
  using Datatype = int;
  using Errhandler = int;
  using Request = int;
  struct MpiStatus {
    int count_low;
    int count_high_and_cancelled;
    int source;
    int tag;
    int error;
  };

  static constexpr int kSuccess = 0;
  static constexpr int kAnySource = -2;
  static constexpr int kSingle = 0;
  static constexpr int kFunneled = 1;
  static constexpr int kSerialized = 2;
  static constexpr int kMultiple = 3;
  static constexpr int kErrorStringBytes = 512;
  static constexpr int kVersionStringBytes = 8192;

  explicit MpichAbi(void*) {}

  static constexpr Comm comm_world() { return 0x44000000; }
  static constexpr Comm comm_self() { return 0x44000001; }
  static constexpr Comm comm_null() { return 0x04000000; }
  static constexpr Datatype byte() { return 0x4c00010d; }
  static constexpr Errhandler errors_return() { return 0x54000001; }
  static constexpr Comm from_fortran(int handle) { return handle; }
};

}  // namespace bluecomm::mpi
