// The types and values of the CUDA driver API that the fake implements, spelled as
// cuda.h spells them. Handles are opaque to callers.
#pragma once

#include <cstddef>
#include <cstdint>

extern "C" {

using CUresult = int;
using CUdevice = int;
using CUdeviceptr = unsigned long long;
struct CUctx_st;
struct CUstream_st;
struct CUevent_st;
using CUcontext = CUctx_st*;
using CUstream = CUstream_st*;
using CUevent = CUevent_st*;
using CUhostFn = void (*)(void*);
struct CUipcMemHandle {
  char reserved[64];
};
struct CUuuid {
  char bytes[16];
};

// The functions that libnccl calls.
CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes);
CUresult cuMemFree_v2(CUdeviceptr address);

}  // extern "C"

namespace fakegpu {

inline constexpr CUresult kCudaSuccess = 0;
inline constexpr CUresult kCudaInvalidValue = 1;
inline constexpr CUresult kCudaOutOfMemory = 2;
inline constexpr CUresult kCudaNotInitialized = 3;
inline constexpr CUresult kCudaInvalidDevice = 101;
inline constexpr CUresult kCudaInvalidContext = 201;
inline constexpr CUresult kCudaMapFailed = 205;
inline constexpr CUresult kCudaNoPeerAccess = 217;
inline constexpr CUresult kCudaInvalidHandle = 400;
inline constexpr CUresult kCudaNotReady = 600;
inline constexpr CUresult kCudaNotPermitted = 800;
inline constexpr CUresult kCudaCaptureUnsupported = 900;

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;

inline constexpr int kCaptureGlobal = 0;
inline constexpr int kCaptureRelaxed = 2;

inline constexpr int kAttributeContext = 1;
inline constexpr int kAttributeMemoryType = 2;
inline constexpr int kAttributeDevicePointer = 3;
inline constexpr int kAttributeHostPointer = 4;
inline constexpr int kAttributeDeviceOrdinal = 9;
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

}  // namespace fakegpu
