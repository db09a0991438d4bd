// Functions of the driver API about memory that processes share. A handle names the
// file behind the exporter's memory. Behind the memory lies a table of the processes
// that have mapped it, so that a free before the last mapping is closed is found. The
// vector clocks of a process know nothing of other processes' accesses.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <string>

#include "call.h"

namespace fakegpu {
namespace {

constexpr unsigned kLazyEnablePeerAccess = 1;
constexpr std::uint64_t kMagic = 0x46414b4549504331;

struct Export {
  std::uint64_t magic;
  int pid;
  int file;
  std::uint64_t offset;
  std::uint64_t bytes;
  int device;
  std::uint32_t serial;
};
static_assert(sizeof(Export) <= sizeof(CUipcMemHandle));

// Facts about an exported allocation, in memory that processes share.
struct Table {
  std::atomic<std::uint32_t> serial;  // 0 once it is freed
  std::array<std::atomic<int>, 64> mappers;
};
static_assert(sizeof(Table) <= 512);

Table& table_of(const Allocation& allocation) {
  return *reinterpret_cast<Table*>(world().memory.margin(allocation));
}

// Replaces one of the numbers. Returns whether it was there.
bool replace(Table& table, int from, int to) {
  for (std::atomic<int>& one : table.mappers) {
    int expected = from;
    if (one.compare_exchange_strong(expected, to)) return true;
  }
  return false;
}

bool is_alive(int pid) {
  const std::string path = "/proc/" + std::to_string(pid) + "/stat";
  std::FILE* const file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  char state = 'Z';
  const int found = std::fscanf(file, "%*d (%*[^)]) %c", &state);
  std::fclose(file);
  return found == 1 && state != 'Z' && state != 'X';
}

Allocation* find_import(const Export& handle) {
  Memory& memory = world().memory;
  for (const auto& [begin, one] : memory.allocations()) {
    if (one.opened > 0 && table_of(one).serial == handle.serial &&
        one.bytes == handle.bytes && one.device == handle.device) {
      return memory.find(begin);
    }
  }
  return nullptr;
}

}  // namespace

void check_unmapped(Allocation& allocation, const std::string& by) {
  if (!allocation.is_exported) return;
  Table& table = table_of(allocation);
  table.serial = 0;
  const auto count = std::ranges::count_if(
      table.mappers, [](const auto& pid) { return pid != 0 && is_alive(pid); });
  if (count == 0) return;
  violation(by, std::to_string(count) + " processes have mapped the memory");
}

}  // namespace fakegpu

using namespace fakegpu;  // NOLINT: this file is the library's surface

extern "C" {

CUresult cuIpcGetMemHandle(CUipcMemHandle* handle, CUdeviceptr address) {
  Call call("cuIpcGetMemHandle");
  if (call.failed()) return call.result();
  Memory& memory = world().memory;
  Allocation* const found = memory.find(address);
  if (found == nullptr || !found->is_device || found->freed) {
    return call.fail(kCudaInvalidValue, "not device memory");
  }
  // CUDA refuses these, which is no misuse: a program cannot tell them from others.
  if (found->is_pooled || found->opened > 0) return kCudaInvalidValue;
  Table& table = table_of(*found);
  if (!found->is_exported) {
    static std::uint32_t exports = 0;
    found->is_exported = true;
    std::memset(static_cast<void*>(&table), 0, sizeof table);
    table.serial = (static_cast<std::uint32_t>(getpid()) << 12U) | (++exports & 0xfffU);
  }
  const Export exported{
      kMagic,       getpid(),      memory.file(), memory.offset_of(*found),
      found->bytes, found->device, table.serial};
  std::memset(handle->reserved, 0, sizeof handle->reserved);
  std::memcpy(handle->reserved, &exported, sizeof exported);
  return kCudaSuccess;
}

CUresult cuIpcOpenMemHandle_v2(CUdeviceptr* address, CUipcMemHandle handle,
                               unsigned flags) {
  Call call("cuIpcOpenMemHandle");
  if (call.failed()) return call.result();
  Export wanted{};
  std::memcpy(&wanted, handle.reserved, sizeof wanted);
  if (wanted.magic != kMagic) return call.fail(kCudaInvalidValue, "not a handle");
  if (flags != kLazyEnablePeerAccess) return call.fail(kCudaInvalidValue, "flags");
  if (wanted.pid == getpid()) {
    return call.fail(kCudaInvalidContext, "the handle is of this process");
  }
  Memory& memory = world().memory;
  if (Allocation* const before = find_import(wanted)) {
    ++before->opened;
    *address = before->begin;
    return kCudaSuccess;
  }
  const std::string path =
      "/proc/" + std::to_string(wanted.pid) + "/fd/" + std::to_string(wanted.file);
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC);
  if (file < 0) return kCudaMapFailed;
  const std::uintptr_t begin =
      memory.import(file, wanted.offset, wanted.bytes, wanted.device);
  close(file);
  if (begin == 0) return kCudaOutOfMemory;
  Allocation& imported = *memory.find(begin);
  Table& table = table_of(imported);
  if (table.serial != wanted.serial || !replace(table, 0, getpid())) {
    memory.end_import(imported, "a handle that could not be opened");
    return call.fail(kCudaInvalidValue, "the memory is freed, or mapped too often");
  }
  *address = begin;
  return kCudaSuccess;
}

// Closes as the host: CUDA does not promise to wait for work that uses the memory.
CUresult cuIpcCloseMemHandle(CUdeviceptr address) {
  Call call("cuIpcCloseMemHandle");
  if (call.failed()) return call.result();
  World& all = world();
  Allocation* const found = all.memory.find(address);
  if (found == nullptr || found->begin != address || found->opened == 0) {
    return call.fail(kCudaInvalidValue,
                     "not the address of a mapping, or closed before");
  }
  if (--found->opened > 0) return kCudaSuccess;
  all.host.advance(kHost);
  all.memory.access({address, found->bytes, true}, kHost, all.host, call.function());
  replace(table_of(*found), getpid(), 0);
  all.memory.end_import(*found, call.function());
  return kCudaSuccess;
}

// Marks memory as that of torch's pools, which CUDA does not export.
void fakegpu_pool(CUdeviceptr address) {
  const std::scoped_lock lock(world().mutex);
  Allocation* const found = world().memory.find(address);
  if (found != nullptr) found->is_pooled = true;
}

}  // extern "C"
