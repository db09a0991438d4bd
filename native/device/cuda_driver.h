#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <stdexcept>
#include <string>

namespace bluecomm::device {

// The handles of CUDA's driver API. A stream of torch is a CudaStream; null is the
// default stream.
using CudaContext = struct OpaqueCudaContext*;
using CudaStream = struct OpaqueCudaStream*;
using CudaEvent = struct OpaqueCudaEvent*;
using DeviceAddress = std::uint64_t;

// CUDA's handle of memory that other processes may map.
struct CudaIpcHandle {
  std::array<char, 64> bytes;
};

// A function of CUDA has returned an error.
class CudaError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// The functions of CUDA's driver API that bluecomm calls, with CUDA's own signatures.
// bluecomm is built without CUDA: open_driver() finds them at run time.
struct CudaFunctions {
  int (*init)(unsigned flags);
  int (*device_count)(int* count);
  int (*device_get)(int* device, int ordinal);
  int (*context_retain)(CudaContext* context, int device);
  int (*context_release)(int device);
  int (*context_push)(CudaContext context);
  int (*context_pop)(CudaContext* context);
  int (*stream_priorities)(int* least, int* greatest);
  int (*stream_create)(CudaStream* stream, unsigned flags, int priority);
  int (*stream_destroy)(CudaStream stream);
  int (*stream_wait)(CudaStream stream, CudaEvent event, unsigned flags);
  int (*stream_is_capturing)(CudaStream stream, int* status);
  int (*exchange_capture_mode)(int* mode);
  int (*event_create)(CudaEvent* event, unsigned flags);
  int (*event_record)(CudaEvent event, CudaStream stream);
  int (*event_query)(CudaEvent event);
  int (*event_elapsed)(float* ms, CudaEvent begin, CudaEvent end);
  int (*event_destroy)(CudaEvent event);
  int (*host_allocate)(void** memory, std::size_t nbytes, unsigned flags);
  int (*host_free)(void* memory);
  int (*copy_to_host)(void* to, DeviceAddress from, std::size_t nbytes,
                      CudaStream stream);
  int (*copy_to_device)(DeviceAddress to, const void* from, std::size_t nbytes,
                        CudaStream stream);
  int (*copy_on_device)(DeviceAddress to, DeviceAddress from, std::size_t nbytes,
                        CudaStream stream);
  int (*allocate)(DeviceAddress* memory, std::size_t nbytes);
  int (*free)(DeviceAddress memory);
  int (*ipc_export)(CudaIpcHandle* handle, DeviceAddress memory);
  int (*ipc_open)(DeviceAddress* memory, CudaIpcHandle handle, unsigned flags);
  int (*ipc_close)(DeviceAddress memory);
  int (*error_name)(int result, const char** name);
  int (*error_text)(int result, const char** text);
};

inline constexpr int kCudaNotReady = 600;

// CUDA's driver, initialized. Thread-safe.
class CudaDriver {
 public:
  // Throws CudaError if CUDA cannot be used.
  explicit CudaDriver(const CudaFunctions& functions);

  const CudaFunctions& call() const { return functions_; }
  int device_count() const;
  // Throws CudaError, which names `function`, unless `result` is success.
  void check(int result, const char* function) const;
  // Returns a text such as "CUDA_ERROR_UNKNOWN (unknown error)".
  std::string describe(int result) const;

 private:
  const CudaFunctions functions_;
};

// Binds the libcuda at `library`, which is a path or a name that the dynamic linker
// finds. It stays loaded. Throws CudaError if there is none, or it lacks a function.
std::shared_ptr<const CudaDriver> open_driver(const std::string& library);

}  // namespace bluecomm::device
