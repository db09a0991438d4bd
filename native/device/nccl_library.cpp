#include "device/nccl_library.h"

#include <dlfcn.h>

namespace bluecomm::device {
namespace {

constexpr const char* kSoname = "libnccl.so.2";
constexpr int kOldestVersion = 21400;
constexpr int kOldestWithPuts = 22902;

void* open_first(const std::vector<std::string>& candidates) {
  if (void* const loaded = dlopen(kSoname, RTLD_NOW | RTLD_LOCAL | RTLD_NOLOAD)) {
    return loaded;
  }
  std::string reasons;
  for (const std::string& candidate : candidates) {
    if (void* const opened = dlopen(candidate.c_str(), RTLD_NOW | RTLD_LOCAL)) {
      return opened;
    }
    reasons += std::string(reasons.empty() ? "" : "; ") + dlerror();
  }
  throw NcclError(
      "NCCL cannot be loaded: " + (reasons.empty() ? "no candidate" : reasons) +
      "; install a torch with CUDA or the package nvidia-nccl-cu12, or set "
      "BLUECOMM_DEVICE_TRANSPORT=staged");
}

template <typename Function>
void bind_nccl(void* library, const char* name, Function& function) {
  void* const found = dlsym(library, name);
  if (found == nullptr) {
    throw NcclError(std::string("NCCL lacks ") + name +
                    "; install a newer one, or set BLUECOMM_DEVICE_TRANSPORT=staged");
  }
  function = reinterpret_cast<Function>(found);
}

NcclFunctions bind_all_of_nccl(void* library) {
  NcclFunctions all{};
  bind_nccl(library, "ncclGetUniqueId", all.get_unique_id);
  bind_nccl(library, "ncclCommInitRankConfig", all.init_rank);
  bind_nccl(library, "ncclCommGetAsyncError", all.get_async_error);
  bind_nccl(library, "ncclCommFinalize", all.finalize);
  bind_nccl(library, "ncclCommAbort", all.abort);
  bind_nccl(library, "ncclAllReduce", all.all_reduce);
  bind_nccl(library, "ncclReduce", all.reduce);
  bind_nccl(library, "ncclBroadcast", all.broadcast);
  bind_nccl(library, "ncclAllGather", all.all_gather);
  bind_nccl(library, "ncclReduceScatter", all.reduce_scatter);
  bind_nccl(library, "ncclSend", all.send);
  bind_nccl(library, "ncclRecv", all.receive);
  bind_nccl(library, "ncclGroupStart", all.group_start);
  bind_nccl(library, "ncclGroupEnd", all.group_end);
  bind_nccl(library, "ncclGetErrorString", all.error_text);
  bind_nccl(library, "ncclGetLastError", all.last_error);
  return all;
}

std::optional<NcclPutFunctions> bind_puts_of_nccl(void* library, int version) {
  if (version < kOldestWithPuts) return std::nullopt;
  NcclPutFunctions all{};
  bind_nccl(library, "ncclMemAlloc", all.allocate);
  bind_nccl(library, "ncclMemFree", all.free);
  bind_nccl(library, "ncclCommWindowRegister", all.register_window);
  bind_nccl(library, "ncclCommWindowDeregister", all.deregister_window);
  bind_nccl(library, "ncclPutSignal", all.put_signal);
  bind_nccl(library, "ncclWaitSignal", all.wait_signal);
  return all;
}

}  // namespace

const NcclPutFunctions& NcclLibrary::puts() const {
  if (put_functions_) return *put_functions_;
  throw NcclError("NCCL " + describe_nccl_version(version_) +
                  " has no one-sided puts, which need 2.29.2 or newer; install a newer "
                  "one, or unset BLUECOMM_WINDOWS");
}

void NcclLibrary::check(int result, const char* function, NcclHandle comm) const {
  if (result == kNcclSuccess || result == kNcclInProgress) return;
  std::string text = std::string(function) + ": " + call().error_text(result);
  const char* const details = comm == nullptr ? nullptr : call().last_error(comm);
  if (details != nullptr && *details != '\0') text += std::string(" (") + details + ")";
  throw NcclError(text, result == kNcclRemoteError);
}

std::string describe_nccl_version(int version) {
  // Versions before 2.9 have one digit fewer, such as 2804.
  const int base = version < 10000 ? 1000 : 10000;
  return std::to_string(version / base) + "." + std::to_string(version % base / 100) +
         "." + std::to_string(version % 100);
}

std::optional<int> nccl_type(DType dtype) {
  switch (dtype) {
    case DType::kInt8:
      return 0;
    case DType::kUInt8:
      return 1;
    case DType::kInt32:
      return 2;
    case DType::kUInt32:
      return 3;
    case DType::kInt64:
      return 4;
    case DType::kUInt64:
      return 5;
    case DType::kFloat16:
      return 6;
    case DType::kFloat32:
      return 7;
    case DType::kFloat64:
      return 8;
    case DType::kBfloat16:
      return 9;
    default:
      return std::nullopt;
  }
}

std::optional<int> nccl_reduction(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return 0;
    case ReduceOp::kProduct:
      return 1;
    case ReduceOp::kMax:
      return 2;
    case ReduceOp::kMin:
      return 3;
    case ReduceOp::kAverage:
      return 4;
    default:
      return std::nullopt;
  }
}

std::shared_ptr<NcclLibrary> open_nccl(const std::vector<std::string>& candidates) {
  void* const opened = open_first(candidates);
  int (*get_version)(int* version) = nullptr;
  bind_nccl(opened, "ncclGetVersion", get_version);
  int version = 0;
  if (get_version(&version) != kNcclSuccess || version < kOldestVersion) {
    throw NcclError("NCCL " + describe_nccl_version(version) +
                    " is loaded, but bluecomm needs 2.14 or newer, whose communicators "
                    "do not block; install a newer torch, or set "
                    "BLUECOMM_DEVICE_TRANSPORT=staged");
  }
  return std::make_shared<NcclLibrary>(bind_all_of_nccl(opened), version,
                                       bind_puts_of_nccl(opened, version));
}

}  // namespace bluecomm::device
