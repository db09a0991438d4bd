#include "memory.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <sstream>

#include "report.h"

namespace fakegpu {
namespace {

constexpr std::size_t kDeviceBytes = std::size_t{8} << 30;  // pages come when touched
constexpr std::size_t kAlignment = 512;
constexpr std::size_t kMostQuarantined = std::size_t{128} << 20;

// Room after each allocation, so that no two touch.
std::size_t block_size(std::size_t bytes) {
  return (bytes + kAlignment) / kAlignment * kAlignment + kAlignment;
}

constexpr std::size_t kPage = 4096;

std::size_t whole_pages(std::size_t bytes) {
  return (bytes + kPage - 1) / kPage * kPage;
}

void* map_or_abort(void* where, std::size_t bytes, int protection, int flags, int fd,
                   off_t offset = 0) {
  void* const mapped = mmap(where, bytes, protection, flags, fd, offset);
  if (mapped == MAP_FAILED) {
    std::perror("fakegpu: mmap");
    std::abort();
  }
  return mapped;
}

std::string describe(const Allocation& allocation, const Range& range) {
  std::ostringstream text;
  text << "bytes " << range.begin - allocation.begin << " to "
       << range.begin - allocation.begin + range.bytes << " of " << allocation.bytes
       << " at 0x" << std::hex << allocation.begin;
  return text.str();
}

}  // namespace

std::size_t Memory::device_bytes() const { return kDeviceBytes; }

void Memory::map_devices() {
  if (alias_base_ != nullptr) return;
  const int fd = memfd_create("fakegpu", MFD_CLOEXEC);
  if (fd < 0 || ftruncate(fd, static_cast<off_t>(kDeviceBytes)) != 0) {
    std::perror("fakegpu: memfd");
    std::abort();
  }
  void* const seen = map_or_abort(nullptr, kDeviceBytes, PROT_NONE,
                                  MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1);
  void* const alias = map_or_abort(nullptr, kDeviceBytes, PROT_READ | PROT_WRITE,
                                   MAP_SHARED | MAP_NORESERVE, fd);
  file_ = fd;  // other processes open it
  device_base_ = reinterpret_cast<std::uintptr_t>(seen);
  alias_base_ = static_cast<std::byte*>(alias);
}

std::uintptr_t Memory::import(int fd, std::size_t offset, std::size_t bytes,
                              int device) {
  map_devices();
  const std::size_t before = offset % kPage;
  const std::size_t length = whole_pages(before + block_size(bytes));
  const std::size_t begin = whole_pages(used_);
  if (begin + length > kDeviceBytes) return 0;
  used_ = begin + length;
  map_or_abort(alias_base_ + begin, length, PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_FIXED, fd, static_cast<off_t>(offset - before));
  Allocation allocation;
  allocation.begin = device_base_ + begin + before;
  allocation.bytes = bytes;
  allocation.device = device;
  allocation.opened = 1;
  allocations_[allocation.begin] = allocation;
  return allocation.begin;
}

void Memory::end_import(Allocation& imported, const std::string& by) {
  mark_freed(imported, by);
  imported.opened = 0;
  const std::size_t offset = offset_of(imported);
  const std::size_t before = offset % kPage;
  // Work that is late writes here, and harms nobody. The memory is again one mapping
  // with that around it.
  map_or_abort(alias_base_ + (offset - before),
               whole_pages(before + block_size(imported.bytes)), PROT_READ | PROT_WRITE,
               MAP_SHARED | MAP_NORESERVE | MAP_FIXED, file_,
               static_cast<off_t>(offset - before));
}

std::byte* Memory::margin(const Allocation& allocation) const {
  return alias(allocation.begin) + block_size(allocation.bytes) - kAlignment;
}

std::byte* Memory::alias(std::uintptr_t address) const {
  if (address >= device_base_ && address < device_base_ + kDeviceBytes) {
    return alias_base_ + (address - device_base_);
  }
  return reinterpret_cast<std::byte*>(address);
}

std::uintptr_t Memory::allocate(std::size_t bytes, bool is_device, int device) {
  if (bytes > kDeviceBytes) return 0;
  const std::size_t block = block_size(bytes);
  std::uintptr_t begin = 0;
  auto& same_size = free_[{is_device, block}];
  if (!same_size.empty()) {
    begin = same_size.back();
    same_size.pop_back();
  } else if (is_device) {
    map_devices();
    if (used_ + block > kDeviceBytes) return 0;
    begin = device_base_ + used_;
    used_ += block;
  } else {
    begin = reinterpret_cast<std::uintptr_t>(std::aligned_alloc(kAlignment, block));
    if (begin == 0) return 0;
  }
  Allocation allocation;
  allocation.begin = begin;
  allocation.bytes = bytes;
  allocation.is_device = is_device;
  allocation.device = device;
  allocations_[begin] = allocation;
  std::memset(alias(begin), kUnwritten, bytes);
  return begin;
}

Allocation* Memory::find(std::uintptr_t address) {
  auto after = allocations_.upper_bound(address);
  if (after == allocations_.begin()) return nullptr;
  Allocation& before = std::prev(after)->second;
  // The end belongs to it, too: a tensor without elements may point there.
  return address <= before.begin + before.bytes ? &before : nullptr;
}

void Memory::mark_freed(Allocation& allocation, const std::string& by) {
  allocation.freed = true;
  allocation.freed_by = by;
}

void Memory::poison(std::uintptr_t begin) {
  Allocation& allocation = allocations_.at(begin);
  std::memset(alias(begin), kFreed, allocation.bytes);
  quarantine_.push_back(begin);
  quarantined_ += allocation.bytes;
  while (quarantined_ > kMostQuarantined) {
    Allocation& oldest = allocations_.at(quarantine_.front());
    quarantine_.pop_front();
    quarantined_ -= oldest.bytes;
    release(oldest);
  }
}

void Memory::check_pattern(const Allocation& allocation) {
  std::byte* const bytes = alias(allocation.begin);
  for (std::size_t i = 0; i < allocation.bytes; ++i) {
    if (bytes[i] == std::byte{kFreed}) continue;
    violation(allocation.freed_by,
              "its memory was written after it was freed: byte " + std::to_string(i));
    std::memset(bytes, kFreed, allocation.bytes);
    return;
  }
}

void Memory::release(const Allocation& allocation) {
  check_pattern(allocation);
  const std::uintptr_t begin = allocation.begin;
  free_[{allocation.is_device, block_size(allocation.bytes)}].push_back(begin);
  allocations_.erase(begin);
}

void Memory::check_freed() {
  for (const std::uintptr_t begin : quarantine_) check_pattern(allocations_.at(begin));
}

bool Memory::check(const Range& range, const std::string& by) {
  if (range.bytes == 0) return true;
  Allocation* const allocation = find(range.begin);
  const std::uintptr_t end = range.begin + range.bytes;
  if (allocation == nullptr || range.begin >= allocation->begin + allocation->bytes) {
    std::ostringstream text;
    text << "0x" << std::hex << range.begin
         << " is neither device nor pinned memory of this process";
    violation(by, text.str());
    return false;
  }
  if (end > allocation->begin + allocation->bytes) {
    violation(by, "beyond the end: " + describe(*allocation, range));
    return false;
  }
  if (allocation->freed) {
    violation(by, "use after free by " + allocation->freed_by + ": " +
                      describe(*allocation, range));
    return false;
  }
  return true;
}

bool Memory::access(const Range& range, int actor, const Clock& clock,
                    const std::string& by) {
  if (!check(range, by)) return false;
  if (range.bytes == 0) return true;
  Allocation* const allocation = find(range.begin);
  const std::uintptr_t end = range.begin + range.bytes;
  std::vector<Allocation::Access>& accesses = allocation->accesses;
  const auto is_ordered = [&](const Allocation::Access& other) {
    return other.time <= clock.of(other.actor);
  };
  for (const Allocation::Access& other : accesses) {
    const bool overlaps = other.begin < end && range.begin < other.end;
    if (overlaps && (range.is_write || other.is_write) && !is_ordered(other)) {
      violation(by, std::string("race: this ") + (range.is_write ? "write" : "read") +
                        " is not ordered after the " +
                        (other.is_write ? "write" : "read") + " by " + other.label +
                        ": " + describe(*allocation, range));
      break;
    }
  }
  // An access that this one covers and follows tells nothing more.
  std::erase_if(accesses, [&](const Allocation::Access& other) {
    const bool is_covered = range.begin <= other.begin && other.end <= end;
    return is_covered && (range.is_write || !other.is_write) && is_ordered(other);
  });
  accesses.push_back({range.begin, end, actor, clock.of(actor), range.is_write, by});
  return true;
}

}  // namespace fakegpu
