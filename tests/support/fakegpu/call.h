// The checks that each function of the driver API begins with.
#pragma once

#include <unistd.h>

#include <mutex>
#include <string>

#include "cuda_abi.h"
#include "report.h"
#include "world.h"

namespace fakegpu {

// Says which calls of the calling thread a capture forbids.
inline int& capture_mode() {
  thread_local int mode = kCaptureGlobal;
  return mode;
}

// The checks that every function begins with, and the mutex while it runs.
class Call {
 public:
  enum class Needs { kNothing, kInit, kContext };

  explicit Call(const char* function, Needs needs = Needs::kContext)
      : function_(function), lock_(world().mutex) {
    const Injected injected = injected_error(function);
    const World& all = world();
    if (injected.kind == Injected::Kind::kCode) {
      result_ = injected.code;
    } else if (in_host_function()) {
      fail(kCudaNotPermitted, "called inside a function of cuLaunchHostFunc");
    } else if (needs == Needs::kNothing) {
      return;
    } else if (all.owner != 0 && all.owner != getpid()) {
      fail(kCudaNotInitialized, "called in a process forked after cuInit");
    } else if (all.owner == 0) {
      fail(kCudaNotInitialized, "called before cuInit");
    } else if (all.broken != kCudaSuccess) {
      result_ = all.broken;
    } else if (needs == Needs::kContext && current_context() == nullptr) {
      fail(kCudaInvalidContext, "no context is current on this thread");
    }
  }

  bool failed() const { return result_ != kCudaSuccess; }
  CUresult result() const { return result_; }
  const std::string& function() const { return function_; }
  std::unique_lock<std::mutex>& lock() { return lock_; }
  int device() const { return current_context()->device; }

  CUresult fail(CUresult code, const std::string& text) {
    violation(function_, text);
    result_ = code;
    return code;
  }

  // Returns the stream, null after a failure. `ordered` calls put work on it or read
  // their position in it.
  CUstream stream(CUstream handle, bool is_ordered = true) {
    CUstream const found = find_stream(handle, function_);
    if (found == nullptr) {
      result_ = kCudaInvalidHandle;
      return nullptr;
    }
    if (is_ordered && found->expected_launches > 0) {
      violation(function_, found->name +
                               " is used before ncclGroupEnd is complete: wait until "
                               "ncclCommGetAsyncError is not ncclInProgress");
    }
    return found;
  }

  CUevent event(CUevent handle) {
    if (!world().events.contains(handle)) {
      fail(kCudaInvalidHandle, "not an event");
      return nullptr;
    }
    if (handle->destroyed) {
      fail(kCudaInvalidHandle, "the event is destroyed");
      return nullptr;
    }
    return handle;
  }

  bool refuses_capture(CUstream stream) {
    if (!stream->capturing) return false;
    fail(kCudaCaptureUnsupported, stream->name + " is being captured");
    return true;
  }

  // During a capture, calls that are unsafe there fail on threads of any other mode.
  void refuse_during_capture() {
    if (failed() || capture_mode() == kCaptureRelaxed) return;
    for (CUstream const stream : world().streams) {
      if (refuses_capture(stream)) return;
    }
  }

 private:
  std::string function_;
  std::unique_lock<std::mutex> lock_;
  CUresult result_ = kCudaSuccess;
};

}  // namespace fakegpu
