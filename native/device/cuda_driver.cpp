#include "device/cuda_driver.h"

#include <dlfcn.h>

#include <string>

#include "device/opened_library.h"

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

CudaFunctions find_all(void* opened) {
  const OpenedLibrary<CudaError> driver{opened, "CUDA's driver",
                                        "install a newer driver"};
  CudaFunctions all{};
  driver.find("cuInit", all.init);
  driver.find("cuDeviceGetCount", all.device_count);
  driver.find("cuDeviceGet", all.device_get);
  driver.find("cuDevicePrimaryCtxRetain", all.context_retain);
  driver.find("cuDevicePrimaryCtxRelease_v2", all.context_release);
  driver.find("cuCtxPushCurrent_v2", all.context_push);
  driver.find("cuCtxPopCurrent_v2", all.context_pop);
  driver.find("cuCtxGetStreamPriorityRange", all.stream_priorities);
  driver.find("cuStreamCreateWithPriority", all.stream_create);
  driver.find("cuStreamDestroy_v2", all.stream_destroy);
  driver.find("cuStreamWaitEvent", all.stream_wait);
  driver.find("cuStreamIsCapturing", all.stream_is_capturing);
  driver.find("cuThreadExchangeStreamCaptureMode", all.exchange_capture_mode);
  driver.find("cuEventCreate", all.event_create);
  driver.find("cuEventRecord", all.event_record);
  driver.find("cuEventQuery", all.event_query);
  driver.find("cuEventElapsedTime", all.event_elapsed);
  driver.find("cuEventDestroy_v2", all.event_destroy);
  driver.find("cuMemHostAlloc", all.host_allocate);
  driver.find("cuMemFreeHost", all.host_free);
  driver.find("cuMemcpyDtoHAsync_v2", all.copy_to_host);
  driver.find("cuMemcpyHtoDAsync_v2", all.copy_to_device);
  driver.find("cuMemcpyDtoDAsync_v2", all.copy_on_device);
  driver.find("cuMemAlloc_v2", all.allocate);
  driver.find("cuMemFree_v2", all.free);
  driver.find("cuIpcGetMemHandle", all.ipc_export);
  driver.find("cuIpcOpenMemHandle_v2", all.ipc_open);
  driver.find("cuIpcCloseMemHandle", all.ipc_close);
  driver.find("cuGetErrorName", all.error_name);
  driver.find("cuGetErrorString", all.error_text);
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
  return std::make_shared<const CudaDriver>(find_all(opened));
}

}  // namespace bluecomm::device
