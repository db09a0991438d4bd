// Functions of the driver API: devices, contexts, streams, events and errors. Each
// checks its arguments, reports a misuse as a violation, and returns the error that
// CUDA documents for it.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <utility>

#include "call.h"

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

CUresult cuInit(unsigned flags) {
  Call call("cuInit", Call::Needs::kNothing);
  if (call.failed()) return call.result();
  if (flags != 0) return call.fail(kCudaInvalidValue, "flags must be 0");
  World& all = world();
  if (all.owner == 0) {
    load_settings();
    all.owner = getpid();
    for (int i = 0; i < kMostDevices; ++i) {
      all.contexts.at(static_cast<std::size_t>(i)).device = i;
    }
  }
  if (all.owner != getpid()) {
    return call.fail(kCudaNotInitialized, "called in a process forked after cuInit");
  }
  return settings().devices > 0 ? kCudaSuccess : 100;
}

CUresult cuDriverGetVersion(int* version) {
  Call call("cuDriverGetVersion", Call::Needs::kNothing);
  if (call.failed()) return call.result();
  *version = settings().driver_version;
  return kCudaSuccess;
}

CUresult cuDeviceGetCount(int* count) {
  Call call("cuDeviceGetCount", Call::Needs::kInit);
  if (call.failed()) return call.result();
  *count = settings().devices;
  return kCudaSuccess;
}

CUresult cuDeviceGet(CUdevice* device, int ordinal) {
  Call call("cuDeviceGet", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (ordinal < 0 || ordinal >= settings().devices) return kCudaInvalidDevice;
  *device = ordinal;
  return kCudaSuccess;
}

CUresult cuDeviceGetName(char* name, int length, CUdevice device) {
  Call call("cuDeviceGetName", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  std::snprintf(name, static_cast<std::size_t>(length), "Fake GPU %d", device);
  return kCudaSuccess;
}

CUresult cuDeviceGetPCIBusId(char* id, int length, CUdevice device) {
  Call call("cuDeviceGetPCIBusId", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  std::snprintf(id, static_cast<std::size_t>(length), "0000:%02X:00.0", device + 1);
  return kCudaSuccess;
}

CUresult cuDeviceCanAccessPeer(int* can_access, CUdevice device, CUdevice peer) {
  Call call("cuDeviceCanAccessPeer", Call::Needs::kInit);
  if (call.failed()) return call.result();
  for (CUdevice const one : {device, peer}) {
    if (one < 0 || one >= settings().devices) return kCudaInvalidDevice;
  }
  *can_access = device != peer;
  return kCudaSuccess;
}

CUresult cuDeviceGetUuid(CUuuid* uuid, CUdevice device) {
  Call call("cuDeviceGetUuid", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  std::memset(uuid->bytes, device + 1, sizeof uuid->bytes);
  return kCudaSuccess;
}

CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  Call call("cuDevicePrimaryCtxRetain", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  *context = &world().contexts.at(static_cast<std::size_t>(device));
  ++(*context)->retained;
  return kCudaSuccess;
}

CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  Call call("cuDevicePrimaryCtxRelease", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  CUctx_st& context = world().contexts.at(static_cast<std::size_t>(device));
  if (context.retained == 0) {
    return call.fail(kCudaInvalidContext, "released more often than retained");
  }
  --context.retained;
  return kCudaSuccess;
}

CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return cuDevicePrimaryCtxRelease_v2(device);
}

CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned* flags, int* active) {
  Call call("cuDevicePrimaryCtxGetState", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (device < 0 || device >= settings().devices) return kCudaInvalidDevice;
  *flags = 0;
  *active = world().contexts.at(static_cast<std::size_t>(device)).retained > 0;
  return kCudaSuccess;
}

CUresult cuCtxGetCurrent(CUcontext* context) {
  Call call("cuCtxGetCurrent", Call::Needs::kInit);
  if (call.failed()) return call.result();
  *context = current_context();
  return kCudaSuccess;
}

CUresult cuCtxSetCurrent(CUcontext context) {
  Call call("cuCtxSetCurrent", Call::Needs::kInit);
  if (call.failed()) return call.result();
  std::vector<CUcontext>& stack = context_stack();
  if (!stack.empty()) stack.pop_back();
  if (context == nullptr) return kCudaSuccess;
  if (context->retained == 0) {
    return call.fail(kCudaInvalidContext, "the context was released");
  }
  stack.push_back(context);
  return kCudaSuccess;
}

CUresult cuCtxPushCurrent_v2(CUcontext context) {
  Call call("cuCtxPushCurrent", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (context == nullptr || context->retained == 0) {
    return call.fail(kCudaInvalidContext, "no context, or it was released");
  }
  context_stack().push_back(context);
  return kCudaSuccess;
}

CUresult cuCtxPopCurrent_v2(CUcontext* context) {
  Call call("cuCtxPopCurrent", Call::Needs::kContext);
  if (call.failed()) return call.result();
  if (context != nullptr) *context = current_context();
  context_stack().pop_back();
  return kCudaSuccess;
}

CUresult cuCtxGetDevice(CUdevice* device) {
  Call call("cuCtxGetDevice");
  if (call.failed()) return call.result();
  *device = call.device();
  return kCudaSuccess;
}

CUresult cuCtxSynchronize() {
  Call call("cuCtxSynchronize");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  const int device = call.device();
  const std::set<CUstream> streams = world().streams;
  for (CUstream const stream : streams) {
    if (stream->device == device) drain(call.lock(), stream);
  }
  return world().broken;
}

CUresult cuCtxGetStreamPriorityRange(int* least, int* greatest) {
  Call call("cuCtxGetStreamPriorityRange");
  if (call.failed()) return call.result();
  if (least != nullptr) *least = 0;
  if (greatest != nullptr) *greatest = -5;
  return kCudaSuccess;
}

CUresult cuStreamCreateWithPriority(CUstream* stream, unsigned flags, int) {
  Call call("cuStreamCreateWithPriority");
  if (call.failed()) return call.result();
  if (flags != kStreamNonBlocking) {
    return call.fail(kCudaInvalidValue,
                     "without CU_STREAM_NON_BLOCKING the stream and the default stream "
                     "wait for each other");
  }
  *stream = add_stream(call.device(), "stream");
  return kCudaSuccess;
}

CUresult cuStreamDestroy_v2(CUstream handle) {
  Call call("cuStreamDestroy", Call::Needs::kInit);
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  stream->destroyed = true;
  stream->ready.notify_one();
  return kCudaSuccess;
}

CUresult cuStreamQuery(CUstream handle) {
  Call call("cuStreamQuery");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  if (is_ignored_wait("cuStreamQuery")) return kCudaSuccess;
  if (stream->completed < stream->submitted) return kCudaNotReady;
  host_has_seen(stream->clock);
  return kCudaSuccess;
}

CUresult cuStreamSynchronize(CUstream handle) {
  Call call("cuStreamSynchronize");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  if (is_ignored_wait("cuStreamSynchronize")) return kCudaSuccess;
  drain(call.lock(), stream);
  return world().broken;
}

CUresult cuStreamWaitEvent(CUstream handle, CUevent event_handle, unsigned flags) {
  Call call("cuStreamWaitEvent");
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  CUevent const event = stream == nullptr ? nullptr : call.event(event_handle);
  if (event == nullptr) return call.result();
  if (flags != 0) return call.fail(kCudaInvalidValue, "flags must be 0");
  if (event->recording == nullptr) {
    violation("cuStreamWaitEvent",
              "the event was never recorded, so nothing is waited for");
    return kCudaSuccess;
  }
  if (is_ignored_wait("cuStreamWaitEvent")) return kCudaSuccess;
  stream->clock.join(event->recording->clock);
  submit(stream, {"cuStreamWaitEvent", nullptr, event->recording}, {});
  return kCudaSuccess;
}

CUresult cuStreamIsCapturing(CUstream handle, int* status) {
  Call call("cuStreamIsCapturing");
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle, false);
  if (stream == nullptr) return call.result();
  *status = stream->capturing ? 1 : 0;
  return kCudaSuccess;
}

CUresult cuThreadExchangeStreamCaptureMode(int* mode) {
  Call call("cuThreadExchangeStreamCaptureMode", Call::Needs::kInit);
  if (call.failed()) return call.result();
  if (*mode < kCaptureGlobal || *mode > kCaptureRelaxed) return kCudaInvalidValue;
  std::swap(*mode, capture_mode());
  return kCudaSuccess;
}

CUresult cuEventCreate(CUevent* event, unsigned flags) {
  Call call("cuEventCreate");
  if (call.failed()) return call.result();
  *event = new CUevent_st;  // kept for ever, so that late uses are found
  (*event)->device = call.device();
  (*event)->flags = flags;
  world().events.insert(*event);
  return kCudaSuccess;
}

CUresult cuEventDestroy_v2(CUevent handle) {
  Call call("cuEventDestroy", Call::Needs::kInit);
  if (call.failed()) return call.result();
  CUevent const event = call.event(handle);
  if (event == nullptr) return call.result();
  event->destroyed = true;
  event->recording.reset();
  return kCudaSuccess;
}

CUresult cuEventRecord(CUevent event_handle, CUstream handle) {
  Call call("cuEventRecord");
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  CUevent const event = stream == nullptr ? nullptr : call.event(event_handle);
  if (event == nullptr) return call.result();
  if (event->device != stream->device) {
    return call.fail(kCudaInvalidHandle, "event and stream are of different devices");
  }
  auto recording = std::make_shared<Recording>();
  Task task{"cuEventRecord",
            [recording] {
              const std::scoped_lock lock(world().mutex);
              recording->done = true;
              recording->when = std::chrono::steady_clock::now();
              wake_streams();
            },
            nullptr};
  submit(stream, std::move(task), {});
  recording->clock = stream->clock;
  event->recording = recording;
  return kCudaSuccess;
}

CUresult cuEventQuery(CUevent handle) {
  Call call("cuEventQuery");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  CUevent const event = call.event(handle);
  if (event == nullptr) return call.result();
  if (event->recording == nullptr || is_ignored_wait("cuEventQuery")) {
    return kCudaSuccess;
  }
  if (!event->recording->done) return kCudaNotReady;
  host_has_seen(event->recording->clock);
  return kCudaSuccess;
}

CUresult cuEventSynchronize(CUevent handle) {
  Call call("cuEventSynchronize");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  CUevent const event = call.event(handle);
  if (event == nullptr) return call.result();
  if (event->recording == nullptr || is_ignored_wait("cuEventSynchronize")) {
    return kCudaSuccess;
  }
  const std::shared_ptr<Recording> recording = event->recording;
  world().changed.wait(call.lock(), [&] { return recording->done; });
  host_has_seen(recording->clock);
  return world().broken;
}

CUresult cuEventElapsedTime(float* ms, CUevent begin, CUevent end) {
  Call call("cuEventElapsedTime");
  if (call.failed()) return call.result();
  for (CUevent const handle : {begin, end}) {
    CUevent const event = call.event(handle);
    if (event == nullptr) return call.result();
    if ((event->flags & kEventDisableTiming) != 0 || event->recording == nullptr) {
      return call.fail(kCudaInvalidHandle, "an event without timing, or not recorded");
    }
    if (!event->recording->done) return kCudaNotReady;
  }
  const std::chrono::duration<float, std::milli> took =
      end->recording->when - begin->recording->when;
  *ms = took.count();
  return kCudaSuccess;
}

CUresult cuEventElapsedTime_v2(float* ms, CUevent begin, CUevent end) {
  return cuEventElapsedTime(ms, begin, end);
}

CUresult cuLaunchHostFunc(CUstream handle, CUhostFn function, void* data) {
  Call call("cuLaunchHostFunc");
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  auto clock = std::make_shared<Clock>();
  Task task{"cuLaunchHostFunc",
            [=] {
              {
                const std::scoped_lock lock(world().mutex);
                host_has_seen(*clock);
              }
              in_host_function() = true;
              function(data);
              in_host_function() = false;
            },
            nullptr};
  submit(stream, std::move(task), {});
  *clock = stream->clock;
  return kCudaSuccess;
}

CUresult cuGetErrorName(CUresult code, const char** name) {
  switch (code) {
    case kCudaSuccess:
      *name = "CUDA_SUCCESS";
      return kCudaSuccess;
    case kCudaInvalidValue:
      *name = "CUDA_ERROR_INVALID_VALUE";
      return kCudaSuccess;
    case kCudaOutOfMemory:
      *name = "CUDA_ERROR_OUT_OF_MEMORY";
      return kCudaSuccess;
    case kCudaNotInitialized:
      *name = "CUDA_ERROR_NOT_INITIALIZED";
      return kCudaSuccess;
    case 100:
      *name = "CUDA_ERROR_NO_DEVICE";
      return kCudaSuccess;
    case kCudaInvalidDevice:
      *name = "CUDA_ERROR_INVALID_DEVICE";
      return kCudaSuccess;
    case kCudaInvalidContext:
      *name = "CUDA_ERROR_INVALID_CONTEXT";
      return kCudaSuccess;
    case kCudaMapFailed:
      *name = "CUDA_ERROR_MAP_FAILED";
      return kCudaSuccess;
    case kCudaNoPeerAccess:
      *name = "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED";
      return kCudaSuccess;
    case kCudaInvalidHandle:
      *name = "CUDA_ERROR_INVALID_HANDLE";
      return kCudaSuccess;
    case kCudaNotReady:
      *name = "CUDA_ERROR_NOT_READY";
      return kCudaSuccess;
    case 700:
      *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
      return kCudaSuccess;
    case 719:
      *name = "CUDA_ERROR_LAUNCH_FAILED";
      return kCudaSuccess;
    case kCudaNotPermitted:
      *name = "CUDA_ERROR_NOT_PERMITTED";
      return kCudaSuccess;
    case kCudaCaptureUnsupported:
      *name = "CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED";
      return kCudaSuccess;
    default:
      *name = nullptr;
      return kCudaInvalidValue;
  }
}

CUresult cuGetErrorString(CUresult code, const char** text) {
  return cuGetErrorName(code, text);
}

}  // extern "C"
