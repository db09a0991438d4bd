#include "device/nccl_library.h"

#include <dlfcn.h>

#include "device/opened_library.h"

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

OpenedLibrary<NcclError> nccl_in(void* opened) {
  return {opened, "NCCL",
          "install a newer one, or set BLUECOMM_DEVICE_TRANSPORT=staged"};
}

NcclFunctions find_all_of_nccl(const OpenedLibrary<NcclError>& library) {
  NcclFunctions all{};
  library.find("ncclGetUniqueId", all.get_unique_id);
  library.find("ncclCommInitRankConfig", all.init_rank);
  library.find("ncclCommGetAsyncError", all.get_async_error);
  library.find("ncclCommFinalize", all.finalize);
  library.find("ncclCommAbort", all.abort);
  library.find("ncclAllReduce", all.all_reduce);
  library.find("ncclReduce", all.reduce);
  library.find("ncclBroadcast", all.broadcast);
  library.find("ncclAllGather", all.all_gather);
  library.find("ncclReduceScatter", all.reduce_scatter);
  library.find("ncclSend", all.send);
  library.find("ncclRecv", all.receive);
  library.find("ncclGroupStart", all.group_start);
  library.find("ncclGroupEnd", all.group_end);
  library.find("ncclGetErrorString", all.error_text);
  library.find("ncclGetLastError", all.last_error);
  return all;
}

std::optional<NcclPutFunctions> find_puts_of_nccl(
    const OpenedLibrary<NcclError>& library, int version) {
  if (version < kOldestWithPuts) return std::nullopt;
  NcclPutFunctions all{};
  library.find("ncclMemAlloc", all.allocate);
  library.find("ncclMemFree", all.free);
  library.find("ncclCommWindowRegister", all.register_window);
  library.find("ncclCommWindowDeregister", all.deregister_window);
  library.find("ncclPutSignal", all.put_signal);
  library.find("ncclWaitSignal", all.wait_signal);
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
  const OpenedLibrary<NcclError> library = nccl_in(open_first(candidates));
  int (*get_version)(int* version) = nullptr;
  library.find("ncclGetVersion", get_version);
  int version = 0;
  if (get_version(&version) != kNcclSuccess || version < kOldestVersion) {
    throw NcclError("NCCL " + describe_nccl_version(version) +
                    " is loaded, but bluecomm needs 2.14 or newer, whose communicators "
                    "do not block; install a newer torch, or set "
                    "BLUECOMM_DEVICE_TRANSPORT=staged");
  }
  return std::make_shared<NcclLibrary>(find_all_of_nccl(library), version,
                                       find_puts_of_nccl(library, version));
}

}  // namespace bluecomm::device
