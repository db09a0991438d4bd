#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <string>

namespace bluecomm::device {
namespace {

// Returns whether an error is that of a kernel or copy. From then on, every call on the
// context returns it.
bool is_of_earlier_work(int result) {
  constexpr int kUncorrectableEcc = 214;
  constexpr int kFirst = 700;  // an illegal address
  constexpr int kLast = 719;   // a failed launch
  return result == kUncorrectableEcc || (kFirst <= result && result <= kLast);
}

// Returns whether an error says that a stream captures a CUDA graph.
bool is_of_capture(int result) {
  constexpr int kFirst = 900;  // the call is forbidden
  constexpr int kLast = 908;   // by a capture of another thread
  return kFirst <= result && result <= kLast;
}

template <typename Function>
void bind(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    throw CudaError(std::string("CUDA's driver lacks ") + name +
                    "; install a newer driver");
  }
  function = reinterpret_cast<Function>(found);
}

CudaFunctions bind_all(void* library) {
  CudaFunctions all{};
  bind(library, "cuInit", all.init);
  bind(library, "cuDeviceGetCount", all.device_count);
  bind(library, "cuDeviceGet", all.device_get);
  bind(library, "cuDevicePrimaryCtxRetain", all.context_retain);
  bind(library, "cuDevicePrimaryCtxRelease_v2", all.context_release);
  bind(library, "cuCtxPushCurrent_v2", all.context_push);
  bind(library, "cuCtxPopCurrent_v2", all.context_pop);
  bind(library, "cuCtxGetStreamPriorityRange", all.stream_priorities);
  bind(library, "cuStreamCreateWithPriority", all.stream_create);
  bind(library, "cuStreamDestroy_v2", all.stream_destroy);
  bind(library, "cuStreamWaitEvent", all.stream_wait);
  bind(library, "cuStreamIsCapturing", all.stream_is_capturing);
  bind(library, "cuThreadExchangeStreamCaptureMode", all.exchange_capture_mode);
  bind(library, "cuEventCreate", all.event_create);
  bind(library, "cuEventRecord", all.event_record);
  bind(library, "cuEventQuery", all.event_query);
  bind(library, "cuEventElapsedTime", all.event_elapsed);
  bind(library, "cuEventDestroy_v2", all.event_destroy);
  bind(library, "cuMemHostAlloc", all.host_allocate);
  bind(library, "cuMemFreeHost", all.host_free);
  bind(library, "cuMemcpyDtoHAsync_v2", all.copy_to_host);
  bind(library, "cuMemcpyHtoDAsync_v2", all.copy_to_device);
  bind(library, "cuMemcpyDtoDAsync_v2", all.copy_on_device);
  bind(library, "cuMemAlloc_v2", all.allocate);
  bind(library, "cuMemFree_v2", all.free);
  bind(library, "cuIpcGetMemHandle", all.ipc_export);
  bind(library, "cuIpcOpenMemHandle_v2", all.ipc_open);
  bind(library, "cuIpcCloseMemHandle", all.ipc_close);
  bind(library, "cuGetErrorName", all.error_name);
  bind(library, "cuGetErrorString", all.error_text);
  return all;
}

}  // namespace

CudaDriver::CudaDriver(const CudaFunctions& functions) : functions_(functions) {
  check(call().init(0), "cuInit");
}

int CudaDriver::device_count() const {
  int count = 0;
  check(call().device_count(&count), "cuDeviceGetCount");
  return count;
}

void CudaDriver::check(int result, const char* function) const {
  if (result != 0) throw CudaError(std::string(function) + ": " + describe(result));
}

std::string CudaDriver::describe(int result) const {
  const char* name = nullptr;
  const char* text = nullptr;
  if (call().error_name(result, &name) != 0 || name == nullptr) {
    return "CUDA error " + std::to_string(result);
  }
  std::string described = name;
  if (call().error_text(result, &text) == 0 && text != nullptr) {
    described += " (" + std::string(text) + ")";
  }
  if (is_of_earlier_work(result)) {
    described +=
        "; a kernel or copy that the program has started before failed, perhaps long "
        "before this call; set CUDA_LAUNCH_BLOCKING=1 to find it";
  }
  if (is_of_capture(result)) {
    described +=
        "; the program captures a CUDA graph, but the ranks exchange values through "
        "the host, which a graph cannot repeat; call the operation outside of the "
        "capture";
  }
  return described;
}

std::shared_ptr<const CudaDriver> open_driver(const std::string& library) {
  void* const opened = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (opened == nullptr) {
    throw CudaError(std::string("CUDA's driver cannot be loaded: ") + dlerror());
  }
  return std::make_shared<const CudaDriver>(bind_all(opened));
}

}  // namespace bluecomm::device
