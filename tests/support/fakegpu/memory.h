// Memory of the fake's devices, pinned memory, and who has accessed which bytes.
//
// Device memory is mapped twice: callers hold addresses that fault when the host
// touches them, and the fake works through an alias. Freed memory is filled with a
// pattern and kept for a while, so that late accesses show. All functions need the
// world's mutex.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

#include "clock.h"

namespace fakegpu {

inline constexpr unsigned char kUnwritten = 0xA5;
inline constexpr unsigned char kFreed = 0xDB;

struct Range {
  std::uintptr_t begin;
  std::size_t bytes;
  bool is_write;
};

struct Allocation {
  struct Access {
    std::uintptr_t begin;
    std::uintptr_t end;
    int actor;
    std::uint64_t time;
    bool is_write;
    std::string label;
  };

  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  bool is_device = true;
  int device = 0;
  bool freed = false;
  std::string freed_by;
  bool is_pooled = false;    // as torch's own memory: other processes cannot map it
  bool is_exported = false;  // other processes may have mapped it
  int opened = 0;            // times that this process has opened another one's memory
  std::vector<Access> accesses;
};

class Memory {
 public:
  // Returns 0 if nothing is left.
  std::uintptr_t allocate(std::size_t bytes, bool is_device, int device);
  // Returns the allocation, also a freed one, that holds `address`; else null.
  Allocation* find(std::uintptr_t address);
  // Marks it freed; `poison` fills it later, in the order of the stream that frees it.
  void mark_freed(Allocation& allocation, const std::string& by);
  void poison(std::uintptr_t begin);

  // Maps memory of another process's fake, which begins at `offset` of the file `fd`,
  // in place of new memory. Returns 0 if nothing is left.
  std::uintptr_t import(int fd, std::size_t offset, std::size_t bytes, int device);
  // Ends such a mapping, whose address is never used again.
  void end_import(Allocation& imported, const std::string& by);
  // The file behind device memory, and the position of an allocation in it.
  int file() const { return file_; }
  std::size_t offset_of(const Allocation& allocation) const {
    return allocation.begin - device_base_;
  }
  // 512 bytes behind an allocation that no kernel touches, which processes share.
  std::byte* margin(const Allocation& allocation) const;
  const std::map<std::uintptr_t, Allocation>& allocations() const {
    return allocations_;
  }

  // Where the fake reads and writes the bytes at `address`.
  std::byte* alias(std::uintptr_t address) const;
  std::uintptr_t device_base() const { return device_base_; }
  std::size_t device_bytes() const;
  std::byte* alias_base() const { return alias_base_; }

  // Reports memory that is unknown or freed, and bytes that are not of one allocation.
  // Returns false then.
  bool check(const Range& range, const std::string& by);
  // Checks an access and records it: `clock` is that of the actor at this time. Reports
  // an access by another actor that is not ordered before it.
  bool access(const Range& range, int actor, const Clock& clock, const std::string& by);

  // Reports freed memory that was written later.
  void check_freed();

 private:
  void map_devices();
  void check_pattern(const Allocation& allocation);
  void release(const Allocation& allocation);

  std::uintptr_t device_base_ = 0;
  std::byte* alias_base_ = nullptr;
  std::size_t used_ = 0;
  int file_ = -1;
  std::map<std::uintptr_t, Allocation> allocations_;
  std::map<std::pair<bool, std::size_t>, std::vector<std::uintptr_t>> free_;
  std::deque<std::uintptr_t> quarantine_;
  std::size_t quarantined_ = 0;
};

}  // namespace fakegpu
