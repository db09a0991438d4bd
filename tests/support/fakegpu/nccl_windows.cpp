// The functions of the fake's libnccl.so.2 about windows, and one-sided puts into them,
// as NCCL has them from 2.29.2 on.
#include <map>
#include <mutex>
#include <string>
#include <utility>

#include "comm_checks.h"
#include "cuda_abi.h"
#include "group.h"
#include "nccl_abi.h"
#include "one_sided.h"
#include "operation.h"
#include "reduce.h"
#include "report.h"
#include "world.h"

namespace fakegpu {
namespace {

constexpr int kWindowSymmetric = 1;

// Memory of ncclMemAlloc: its address and bytes. Needs the world's mutex.
std::map<std::uintptr_t, std::size_t>& nccl_memory() {
  static auto* const all = new std::map<std::uintptr_t, std::size_t>;
  return *all;
}

ncclResult_t refuse(const char* function, const std::string& text) {
  violation(function, text);
  return fail_group(kNcclInvalidArgument);
}

bool is_too_old(const char* function) {
  if (settings().nccl_version >= kOldestOneSided) return false;
  violation(function, "this version of NCCL lacks the function");
  return true;
}

// Checks the arguments that are reserved in these versions.
bool is_reserved(int signal, int context, unsigned flags) {
  return signal == 0 && context == 0 && flags == 0;
}

}  // namespace
}  // namespace fakegpu

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

ncclResult_t ncclMemAlloc(void** out, std::size_t bytes) {
  const Injected injected = injected_error("ncclMemAlloc");
  if (injected) return injected.code;
  CUdeviceptr address = 0;
  if (cuMemAlloc_v2(&address, bytes) != kCudaSuccess) return kNcclUnhandledCuda;
  *out = reinterpret_cast<void*>(address);
  const std::scoped_lock lock(world().mutex);
  nccl_memory()[address] = bytes;
  return kNcclSuccess;
}

ncclResult_t ncclMemFree(void* memory) {
  const Injected injected = injected_error("ncclMemFree");
  if (injected) return injected.code;
  const auto address = reinterpret_cast<std::uintptr_t>(memory);
  {
    const std::scoped_lock lock(world().mutex);
    if (nccl_memory().erase(address) == 0) {
      violation("ncclMemFree", "not memory of ncclMemAlloc");
      return kNcclInvalidArgument;
    }
  }
  return cuMemFree_v2(address) == kCudaSuccess ? kNcclSuccess : kNcclUnhandledCuda;
}

ncclResult_t ncclCommWindowRegister(ncclComm_t comm, void* memory, std::size_t bytes,
                                    ncclWindow_t* out, int flags) {
  const char* const function = "ncclCommWindowRegister";
  const Injected injected = injected_error(function);
  if (injected.kind == Injected::Kind::kCode) return injected.code;
  if (is_too_old(function)) return kNcclInvalidUsage;
  const ncclResult_t ready = check_ready(comm, function);
  if (ready != kNcclSuccess) return ready;
  const InCall in_call(comm, function);
  const auto begin = reinterpret_cast<std::uintptr_t>(memory);
  {
    const std::scoped_lock lock(world().mutex);
    const auto found = nccl_memory().find(begin);
    if (found == nccl_memory().end() || found->second < bytes) {
      return refuse(function, "not memory of ncclMemAlloc, or longer");
    }
  }
  if (flags != kWindowSymmetric) {
    return refuse(function, "the fake knows NCCL_WIN_COLL_SYMMETRIC only");
  }
  if (find_window(*comm, begin, bytes) != nullptr) {
    return refuse(function, "the memory is registered already");
  }
  if (injected.kind == Injected::Kind::kAsync) {
    set_error(*comm, injected.code, std::string("injected into ") + function);
  }
  if (comm->one_sided == nullptr) comm->one_sided = std::make_shared<OneSided>();
  std::uint64_t ticket = 0;
  {
    const std::scoped_lock lock(comm->mutex);
    ticket = comm->tickets++;
    comm->state = CommState::kBusy;
  }
  return run_for(*comm, [=] {
    run_in_turn(*comm, ticket, [&] {
      if (injected.kind == Injected::Kind::kHang) {
        std::unique_lock lock(comm->mutex);
        comm->changed.wait(lock, [&] { return comm->aborted.load(); });
        return;
      }
      FakeWindow* const made = register_window(*comm, begin, bytes);
      // NCCL returns no window, and no error, where ranks cannot reach each other so.
      *out = settings().has_windows ? made : nullptr;
    });
  });
}

ncclResult_t ncclCommWindowDeregister(ncclComm_t comm, ncclWindow_t window) {
  const char* const function = "ncclCommWindowDeregister";
  const Injected injected = injected_error(function);
  if (injected) return injected.code;
  const ncclResult_t ready = check_ready(comm, function);
  if (ready != kNcclSuccess) return ready;
  const InCall in_call(comm, function);
  if (!is_window(*comm, window)) {
    return refuse(function, "not a window of this communicator");
  }
  const std::scoped_lock lock(world().mutex, comm->one_sided->mutex);
  window->is_open = false;
  return kNcclSuccess;
}

ncclResult_t ncclPutSignal(const void* from, std::size_t count, ncclDataType_t type,
                           int peer, ncclWindow_t window, std::size_t offset,
                           int signal, int context, unsigned flags, ncclComm_t comm,
                           CUstream stream) {
  const char* const function = "ncclPutSignal";
  Operation put;
  put.kind = Operation::kPut;
  put.send = from;
  put.count = count;
  put.type = type;
  put.root = peer;
  put.window = window;
  put.offset = offset;
  put.comm = comm;
  put.stream = stream;
  if (is_too_old(function)) return kNcclInvalidUsage;
  if (!is_comm(comm, function)) return fail_group(kNcclInvalidArgument);
  if (!is_reserved(signal, context, flags)) {
    return refuse(function, "signal, context and flags must be 0");
  }
  if (!is_window(*comm, window)) {
    return refuse(function, "not a window of this communicator");
  }
  const std::size_t bytes = count * size_of(type);
  const bool has_peer = peer >= 0 && peer < comm->size;
  if (has_peer && offset + bytes > window->sizes[static_cast<std::size_t>(peer)]) {
    return refuse(function, "beyond the end of rank " + std::to_string(peer) +
                                "'s part of the window");
  }
  if (find_window(*comm, reinterpret_cast<std::uintptr_t>(from), bytes) == nullptr) {
    return refuse(function, "the source is not in a window of this communicator");
  }
  return add_checked(std::move(put), function);
}

ncclResult_t ncclSignal(int peer, int signal, int context, unsigned flags,
                        ncclComm_t comm, CUstream stream) {
  const char* const function = "ncclSignal";
  Operation raise;
  raise.kind = Operation::kPut;
  raise.root = peer;
  raise.comm = comm;
  raise.stream = stream;
  if (is_too_old(function)) return kNcclInvalidUsage;
  if (!is_comm(comm, function)) return fail_group(kNcclInvalidArgument);
  if (!is_reserved(signal, context, flags) || comm->one_sided == nullptr) {
    return refuse(function,
                  "signal, context and flags must be 0, and a window registered");
  }
  return add_checked(std::move(raise), function);
}

ncclResult_t ncclWaitSignal(int count, const ncclWaitSignalDesc_t* descriptions,
                            ncclComm_t comm, CUstream stream) {
  const char* const function = "ncclWaitSignal";
  Operation wait;
  wait.kind = Operation::kWaitSignal;
  wait.comm = comm;
  wait.stream = stream;
  if (is_too_old(function)) return kNcclInvalidUsage;
  if (!is_comm(comm, function)) return fail_group(kNcclInvalidArgument);
  if (count <= 0 || descriptions == nullptr || comm->one_sided == nullptr) {
    return refuse(function, "nothing to wait for, or no window registered");
  }
  const bool is_ignored = is_ignored_wait(function);
  for (int i = 0; i < count; ++i) {
    const ncclWaitSignalDesc_t& one = descriptions[i];
    if (one.peer < 0 || one.peer >= comm->size || one.opCnt <= 0 ||
        !is_reserved(one.sigIdx, one.ctx, 0)) {
      return refuse(function,
                    "no such rank, no signals, or signal or context is not 0");
    }
    const std::scoped_lock lock(comm->one_sided->mutex);
    Source& source = comm->one_sided->sources[static_cast<std::size_t>(one.peer)];
    source.expected += static_cast<std::uint64_t>(one.opCnt);
    if (!is_ignored) wait.waits.emplace_back(one.peer, source.expected);
  }
  return add_checked(std::move(wait), function);
}

}  // extern "C"
