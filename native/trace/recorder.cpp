#include "trace/recorder.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "common/fd.h"

namespace bluecomm {
namespace {

constexpr char kMagic[8] = {'B', 'L', 'U', 'E', 'T', 'R', 'C', 'E'};
constexpr std::size_t kNamesBytes = 1 << 20;
constexpr std::size_t kMaxName = 512;
constexpr std::string_view kNoRoom = "(the table of names is full)";
constexpr std::uint64_t kOperationsPerEngine = std::uint64_t{1} << 40;

[[noreturn]] void fail(const std::string& what, int error) {
  throw std::system_error(error, std::generic_category(), what);
}

// Creates the file and allocates its disk space now, because a full disk would
// otherwise kill the process with SIGBUS later.
UniqueFd make_file(const std::string& path, std::size_t nbytes) {
  const int flags = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  UniqueFd fd(::open(path.c_str(), flags, 0600));
  if (!fd) fail("cannot create the trace file " + path, errno);
  const int error = ::posix_fallocate(fd.get(), 0, static_cast<off_t>(nbytes));
  if (error != 0) {
    ::unlink(path.c_str());
    fail("cannot allocate " + std::to_string(nbytes) + " bytes for the trace file " +
             path,
         error);
  }
  return fd;
}

std::int64_t clock_ns(clockid_t clock) {
  timespec now{};
  ::clock_gettime(clock, &now);
  return now.tv_sec * 1'000'000'000 + now.tv_nsec;
}

}  // namespace

Recorder::Recorder(const std::string& path, std::size_t nbytes, int rank, int size) {
  const std::size_t capacity = std::max<std::size_t>(1, nbytes / sizeof(Event));
  nbytes_ = kHeaderBytes + kNamesBytes + capacity * sizeof(Event);
  const UniqueFd fd = make_file(path, nbytes_);
  void* const memory =
      ::mmap(nullptr, nbytes_, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) {
    const int error = errno;
    ::unlink(path.c_str());
    fail("cannot map the trace file " + path, error);
  }
  memory_ = static_cast<std::byte*>(memory);
  // Touches every page now: the first write to one costs ten microseconds on ext4.
  std::memset(memory_, 0, nbytes_);
  header_ = reinterpret_cast<TraceHeader*>(memory_);
  events_ = reinterpret_cast<Event*>(memory_ + kHeaderBytes + kNamesBytes);
  header_->version = kTraceVersion;
  header_->event_bytes = sizeof(Event);
  header_->capacity = capacity;
  header_->names_capacity = kNamesBytes;
  header_->started_ns = clock_ns(CLOCK_MONOTONIC);
  header_->started_unix_ns = clock_ns(CLOCK_REALTIME);
  header_->rank = rank;
  header_->size = size;
  header_->pid = ::getpid();
  header_->main_thread = static_cast<std::uint32_t>(::getpid());
  append("");
  append(kNoRoom);
  std::memcpy(header_->magic, kMagic, sizeof kMagic);
}

Recorder::~Recorder() { ::munmap(memory_, nbytes_); }

std::uint32_t Recorder::name(std::string_view text) {
  if (text.empty()) return 0;  // the first entry of the table
  text = text.substr(0, kMaxName);
  const LockGuard lock(mutex_);
  const auto known = names_.find(text);
  if (known != names_.end()) return known->second;
  const std::size_t needed = sizeof(std::uint16_t) + text.size();
  const bool fits = header_->names_bytes + needed <= header_->names_capacity;
  return fits ? append(text) : names_.find(kNoRoom)->second;
}

std::uint32_t Recorder::append(std::string_view text) {
  const std::uint64_t used = header_->names_bytes;
  std::byte* const at = memory_ + kHeaderBytes + used;
  const auto length = static_cast<std::uint16_t>(text.size());
  std::memcpy(at, &length, sizeof length);
  std::memcpy(at + sizeof length, text.data(), text.size());
  // So a reader sees whole names only, even if this process is killed here.
  std::atomic_ref(header_->names_bytes)
      .store(used + sizeof length + text.size(), std::memory_order_release);
  names_.emplace(text, static_cast<std::uint32_t>(used));
  return static_cast<std::uint32_t>(used);
}

// The type of a slot is kNone while the slot is being written, and is set last. Two
// threads can write to the same slot only if one of them is suspended while the others
// fill the whole ring; the slot then holds parts of both events.
void Recorder::add(Event event) noexcept {
  const std::uint64_t number =
      std::atomic_ref(header_->written).fetch_add(1, std::memory_order_relaxed);
  Event& slot = events_[number % header_->capacity];
  const EventType type = std::exchange(event.type, EventType::kNone);
  // Acquire, so that no write below is moved before it.
  std::atomic_ref(slot.type).exchange(EventType::kNone, std::memory_order_acquire);
  std::memcpy(static_cast<void*>(&slot), &event, offsetof(Event, type));
  std::atomic_ref(slot.type).store(type, std::memory_order_release);
}

std::uint64_t Recorder::operations_from() {
  const LockGuard lock(mutex_);
  return engines_++ * kOperationsPerEngine;
}

std::uint32_t Recorder::thread() {
  static thread_local const auto number =
      static_cast<std::uint32_t>(::syscall(SYS_gettid));
  return number;
}

}  // namespace bluecomm
