#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "common/dtype.h"
#include "device/cuda_driver.h"
#include "kernels/combine.h"

namespace bluecomm::device {

using NcclHandle = struct OpaqueNcclComm*;
using NcclWindowHandle = struct OpaqueNcclWindow*;

// Identifies a communicator that is being made. NCCL takes it by value.
struct NcclId {
  std::array<std::byte, 128> bytes{};
};

// The fields of NCCL 2.14's ncclConfig_t. Later versions read as many as `size` says,
// and take the default of each field that is newer than `version`.
struct NcclConfig {
  std::size_t size;
  unsigned magic;
  unsigned version;
  int blocking;
};

// The signals of one rank that a wait expects: NCCL's ncclWaitSignalDesc_t.
struct NcclSignals {
  int count;
  int peer;
  int signal;   // NCCL knows only 0
  int context;  // NCCL knows only 0
};

// Results of NCCL's functions.
inline constexpr int kNcclSuccess = 0;
inline constexpr int kNcclRemoteError = 6;
inline constexpr int kNcclInProgress = 7;

// A function of NCCL has returned an error, or there is no usable NCCL.
class NcclError : public std::runtime_error {
 public:
  explicit NcclError(const std::string& text, bool is_remote = false)
      : std::runtime_error(text), is_remote_(is_remote) {}

  // Whether another rank has ended, or cannot be reached.
  bool is_remote() const { return is_remote_; }

 private:
  bool is_remote_;
};

// The functions of NCCL that bluecomm calls, with NCCL's own signatures. bluecomm is
// built without NCCL: open_nccl() finds them at run time.
struct NcclFunctions {
  int (*get_unique_id)(NcclId* id);
  int (*init_rank)(NcclHandle* comm, int size, NcclId id, int rank, NcclConfig* config);
  int (*get_async_error)(NcclHandle comm, int* error);
  int (*finalize)(NcclHandle comm);
  int (*abort)(NcclHandle comm);
  int (*all_reduce)(const void* from, void* to, std::size_t count, int type,
                    int reduction, NcclHandle comm, CudaStream stream);
  int (*reduce)(const void* from, void* to, std::size_t count, int type, int reduction,
                int root, NcclHandle comm, CudaStream stream);
  int (*broadcast)(const void* from, void* to, std::size_t count, int type, int root,
                   NcclHandle comm, CudaStream stream);
  int (*all_gather)(const void* from, void* to, std::size_t count, int type,
                    NcclHandle comm, CudaStream stream);
  int (*reduce_scatter)(const void* from, void* to, std::size_t count, int type,
                        int reduction, NcclHandle comm, CudaStream stream);
  int (*send)(const void* from, std::size_t count, int type, int peer, NcclHandle comm,
              CudaStream stream);
  int (*receive)(void* to, std::size_t count, int type, int peer, NcclHandle comm,
                 CudaStream stream);
  int (*group_start)();
  int (*group_end)();
  const char* (*error_text)(int result);
  const char* (*last_error)(NcclHandle comm);
};

// The functions of NCCL for one-sided puts, which it has from 2.29.2 on.
struct NcclPutFunctions {
  int (*allocate)(void** memory, std::size_t nbytes);
  int (*free)(void* memory);
  int (*register_window)(NcclHandle comm, void* memory, std::size_t nbytes,
                         NcclWindowHandle* window, int flags);
  int (*deregister_window)(NcclHandle comm, NcclWindowHandle window);
  int (*put_signal)(const void* from, std::size_t count, int type, int peer,
                    NcclWindowHandle window, std::size_t offset, int signal,
                    int context, unsigned flags, NcclHandle comm, CudaStream stream);
  int (*wait_signal)(int count, NcclSignals* signals, NcclHandle comm,
                     CudaStream stream);
};

// NCCL. Thread-safe, except that only one thread at a time may use a communicator.
class NcclLibrary {
 public:
  NcclLibrary(const NcclFunctions& functions, int version,
              const std::optional<NcclPutFunctions>& put_functions = std::nullopt)
      : functions_(functions), version_(version), put_functions_(put_functions) {}

  const NcclFunctions& call() const { return functions_; }
  bool has_puts() const { return put_functions_.has_value(); }
  // Throws NcclError if this version has no one-sided puts.
  const NcclPutFunctions& puts() const;
  // NCCL's number of the version, such as 22907.
  int version() const { return version_; }
  // Throws NcclError, which names `function`, unless `result` is success or in
  // progress. `comm` may be null.
  void check(int result, const char* function, NcclHandle comm) const;

 private:
  const NcclFunctions functions_;
  const int version_;
  const std::optional<NcclPutFunctions> put_functions_;
};

// Returns a version in words, such as "2.29.7".
std::string describe_nccl_version(int version);

// Returns NCCL's value of a type that it can add, or nothing.
std::optional<int> nccl_type(DType dtype);
// Returns NCCL's value of a reduction that it has, or nothing.
std::optional<int> nccl_reduction(ReduceOp op);

// Binds the NCCL that this process has loaded, such as that of torch, or else the first
// of `candidates` that can be loaded: paths, or names that the dynamic linker finds. It
// stays loaded. Throws NcclError if there is none, or it is older than 2.14, the first
// version whose communicators do not block.
std::shared_ptr<NcclLibrary> open_nccl(const std::vector<std::string>& candidates);

}  // namespace bluecomm::device
