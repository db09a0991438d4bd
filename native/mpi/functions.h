#pragma once

// The functions of MPI 3 that bluecomm uses, as (member, function).
//
// tests/mpi/ compares this list and the declarations of the ABIs with the real
// headers.

namespace bluecomm::mpi {

#define EACH_MPI_FUNCTION(X)                      \
  X(get_version, MPI_Get_version)                 \
  X(get_library_version, MPI_Get_library_version) \
  X(initialized, MPI_Initialized)                 \
  X(finalized, MPI_Finalized)                     \
  X(init_thread, MPI_Init_thread)                 \
  X(query_thread, MPI_Query_thread)               \
  X(is_thread_main, MPI_Is_thread_main)           \
  X(finalize, MPI_Finalize)                       \
  X(error_string, MPI_Error_string)               \
  X(comm_rank, MPI_Comm_rank)                     \
  X(comm_size, MPI_Comm_size)                     \
  X(comm_dup, MPI_Comm_dup)                       \
  X(comm_set_errhandler, MPI_Comm_set_errhandler) \
  X(comm_create_keyval, MPI_Comm_create_keyval)   \
  X(comm_set_attr, MPI_Comm_set_attr)             \
  X(isend, MPI_Isend)                             \
  X(issend, MPI_Issend)                           \
  X(irecv, MPI_Irecv)                             \
  X(ibcast, MPI_Ibcast)                           \
  X(test, MPI_Test)                               \
  X(testsome, MPI_Testsome)                       \
  X(test_cancelled, MPI_Test_cancelled)           \
  X(cancel, MPI_Cancel)                           \
  X(get_count, MPI_Get_count)

template <typename Abi>
struct MpiFunctions {
  using Comm = typename Abi::Comm;
  using Datatype = typename Abi::Datatype;
  using Errhandler = typename Abi::Errhandler;
  using Request = typename Abi::Request;
  using MpiStatus = typename Abi::MpiStatus;
  using CopyAttribute = int (*)(Comm, int, void*, void*, void*, int*);
  using DeleteAttribute = int (*)(Comm, int, void*, void*);

  int (*get_version)(int*, int*);
  int (*get_library_version)(char*, int*);
  int (*initialized)(int*);
  int (*finalized)(int*);
  int (*init_thread)(int*, char***, int, int*);
  int (*query_thread)(int*);
  int (*is_thread_main)(int*);
  int (*finalize)();
  int (*error_string)(int, char*, int*);
  int (*comm_rank)(Comm, int*);
  int (*comm_size)(Comm, int*);
  int (*comm_dup)(Comm, Comm*);
  int (*comm_set_errhandler)(Comm, Errhandler);
  int (*comm_create_keyval)(CopyAttribute, DeleteAttribute, int*, void*);
  int (*comm_set_attr)(Comm, int, void*);
  int (*isend)(const void*, int, Datatype, int, int, Comm, Request*);
  int (*issend)(const void*, int, Datatype, int, int, Comm, Request*);
  int (*irecv)(void*, int, Datatype, int, int, Comm, Request*);
  int (*ibcast)(void*, int, Datatype, int, Comm, Request*);
  int (*test)(Request*, int*, MpiStatus*);
  int (*testsome)(int, Request*, int*, int*, MpiStatus*);
  int (*test_cancelled)(const MpiStatus*, int*);
  int (*cancel)(Request*);
  int (*get_count)(const MpiStatus*, Datatype, int*);
};

}  // namespace bluecomm::mpi
