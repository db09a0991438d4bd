// Functions of the driver API about memory: allocation, copies, and attributes of
// addresses.
#include <cstdint>
#include <cstring>
#include <utility>

#include "call.h"

namespace fakegpu {
namespace {

CUresult allocate(Call& call, std::uintptr_t* out, std::size_t bytes, bool is_device) {
  if (out == nullptr || bytes == 0) {
    return call.fail(kCudaInvalidValue, "no bytes, or nowhere to return the address");
  }
  *out = world().memory.allocate(bytes, is_device, call.device());
  return *out == 0 ? kCudaOutOfMemory : kCudaSuccess;
}

// Frees memory as the host: CUDA does not promise to wait for work that uses it.
CUresult free_memory(Call& call, std::uintptr_t begin, bool is_device) {
  World& all = world();
  if (begin == 0) return kCudaSuccess;
  Allocation* const found = all.memory.find(begin);
  if (found == nullptr || found->begin != begin || found->is_device != is_device) {
    return call.fail(kCudaInvalidValue, "not the address of an allocation");
  }
  if (found->freed) {
    return call.fail(kCudaInvalidValue, "freed before, by " + found->freed_by);
  }
  if (found->opened > 0) {
    return call.fail(kCudaInvalidValue, "memory of another process is closed");
  }
  check_unmapped(*found, call.function());
  all.host.advance(kHost);
  all.memory.access({begin, found->bytes, true}, kHost, all.host, call.function());
  all.memory.mark_freed(*found, call.function());
  all.memory.poison(begin);
  return kCudaSuccess;
}

CUresult copy(Call& call, std::uintptr_t to, std::uintptr_t from, std::size_t bytes,
              CUstream handle) {
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  Memory& memory = world().memory;
  std::byte* const target = memory.alias(to);
  const std::byte* const source = memory.alias(from);
  Task task{call.function(), [=] { std::memcpy(target, source, bytes); }, nullptr};
  const std::vector<Range> ranges{{from, bytes, false}, {to, bytes, true}};
  return submit(stream, std::move(task), ranges) ? kCudaSuccess : kCudaInvalidValue;
}

bool is_device_memory(Call& call, std::uintptr_t address) {
  const Allocation* const found = world().memory.find(address);
  if (found != nullptr && found->is_device) return true;
  call.fail(kCudaInvalidValue, "not device memory");
  return false;
}

// CUDA copies pageable memory of the host before it returns.
bool is_pageable(std::uintptr_t address) {
  return world().memory.find(address) == nullptr;
}

CUresult copy_from_pageable(Call& call, std::uintptr_t to, const void* from,
                            std::size_t bytes, CUstream handle) {
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  const auto* const begin = static_cast<const std::byte*>(from);
  std::vector<std::byte> staged(begin, begin + bytes);
  std::byte* const target = world().memory.alias(to);
  Task task{call.function(),
            [target, staged = std::move(staged)] {
              std::memcpy(target, staged.data(), staged.size());
            },
            nullptr};
  const bool is_valid = submit(stream, std::move(task), {{to, bytes, true}});
  return is_valid ? kCudaSuccess : kCudaInvalidValue;
}

CUresult copy_to_pageable(Call& call, void* to, std::uintptr_t from, std::size_t bytes,
                          CUstream handle) {
  CUstream const stream = call.stream(handle);
  if (stream == nullptr) return call.result();
  const std::byte* const source = world().memory.alias(from);
  Task task{call.function(), [=] { std::memcpy(to, source, bytes); }, nullptr};
  if (!submit(stream, std::move(task), {{from, bytes, false}}))
    return kCudaInvalidValue;
  drain(call.lock(), stream);
  return kCudaSuccess;
}

}  // namespace
}  // namespace fakegpu

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

CUresult cuMemAlloc_v2(CUdeviceptr* address, std::size_t bytes) {
  Call call("cuMemAlloc");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  std::uintptr_t begin = 0;
  const CUresult result =
      allocate(call, address == nullptr ? nullptr : &begin, bytes, true);
  if (result == kCudaSuccess) *address = begin;
  return result;
}

CUresult cuMemFree_v2(CUdeviceptr address) {
  Call call("cuMemFree");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  return free_memory(call, address, true);
}

CUresult cuMemHostAlloc(void** address, std::size_t bytes, unsigned) {
  Call call("cuMemHostAlloc");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  std::uintptr_t begin = 0;
  const CUresult result =
      allocate(call, address == nullptr ? nullptr : &begin, bytes, false);
  if (result == kCudaSuccess) *address = reinterpret_cast<void*>(begin);
  return result;
}

CUresult cuMemFreeHost(void* address) {
  Call call("cuMemFreeHost");
  call.refuse_during_capture();
  if (call.failed()) return call.result();
  return free_memory(call, reinterpret_cast<std::uintptr_t>(address), false);
}

CUresult cuMemcpyAsync(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                       CUstream stream) {
  Call call("cuMemcpyAsync");
  if (call.failed()) return call.result();
  return copy(call, to, from, bytes, stream);
}

CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyDtoDAsync");
  if (call.failed()) return call.result();
  if (!is_device_memory(call, to) || !is_device_memory(call, from))
    return call.result();
  return copy(call, to, from, bytes, stream);
}

CUresult cuMemcpyDtoHAsync_v2(void* to, CUdeviceptr from, std::size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyDtoHAsync");
  if (call.failed()) return call.result();
  const auto target = reinterpret_cast<std::uintptr_t>(to);
  if (!is_device_memory(call, from)) return call.result();
  if (is_pageable(target)) return copy_to_pageable(call, to, from, bytes, stream);
  return copy(call, target, from, bytes, stream);
}

CUresult cuMemcpyHtoDAsync_v2(CUdeviceptr to, const void* from, std::size_t bytes,
                              CUstream stream) {
  Call call("cuMemcpyHtoDAsync");
  if (call.failed()) return call.result();
  const auto source = reinterpret_cast<std::uintptr_t>(from);
  if (!is_device_memory(call, to)) return call.result();
  if (is_pageable(source)) return copy_from_pageable(call, to, from, bytes, stream);
  return copy(call, to, source, bytes, stream);
}

CUresult cuMemsetD8Async(CUdeviceptr to, unsigned char value, std::size_t bytes,
                         CUstream handle) {
  Call call("cuMemsetD8Async");
  if (call.failed()) return call.result();
  CUstream const stream = call.stream(handle);
  if (stream == nullptr || !is_device_memory(call, to)) return call.result();
  std::byte* const target = world().memory.alias(to);
  Task task{"cuMemsetD8Async", [=] { std::memset(target, value, bytes); }, nullptr};
  const bool is_valid = submit(stream, std::move(task), {{to, bytes, true}});
  return is_valid ? kCudaSuccess : kCudaInvalidValue;
}

CUresult cuPointerGetAttribute(void* out, int attribute, CUdeviceptr address) {
  Call call("cuPointerGetAttribute", Call::Needs::kInit);
  if (call.failed()) return call.result();
  const Allocation* const found = world().memory.find(address);
  // CUDA does not know other memory of the host, so this is no misuse.
  if (found == nullptr || found->freed) return kCudaInvalidValue;
  switch (attribute) {
    case kAttributeContext: {
      CUcontext context = &world().contexts.at(static_cast<std::size_t>(found->device));
      std::memcpy(out, &context, sizeof context);
      return kCudaSuccess;
    }
    case kAttributeMemoryType: {
      const unsigned type = found->is_device ? kMemoryTypeDevice : kMemoryTypeHost;
      std::memcpy(out, &type, sizeof type);
      return kCudaSuccess;
    }
    case kAttributeDevicePointer:
    case kAttributeHostPointer:
      if (attribute == kAttributeHostPointer && found->is_device) {
        return kCudaInvalidValue;
      }
      std::memcpy(out, &address, sizeof address);
      return kCudaSuccess;
    case kAttributeDeviceOrdinal:
      std::memcpy(out, &found->device, sizeof found->device);
      return kCudaSuccess;
    default:
      return call.fail(kCudaInvalidValue, "the fake does not know this attribute");
  }
}

}  // extern "C"
