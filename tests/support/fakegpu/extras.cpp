// Functions that tests call besides the driver's: what a kernel would read and write,
// memory that a stream frees, and the state of the fake.
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <string>
#include <vector>

#include "report.h"
#include "world.h"

using namespace fakegpu;  // NOLINT: this file is the library's surface

namespace {

constexpr int kMostDimensions = 16;

struct Strided {
  int dimensions;
  std::vector<long> sizes;
  std::vector<long> strides;  // in bytes
  std::size_t item;
};

// Copies the items of a dense array, in order, to their positions.
void scatter(std::byte* to, const std::byte*& from, const Strided& shape,
             int dimension) {
  if (dimension == shape.dimensions) {
    std::memcpy(to, from, shape.item);
    from += shape.item;
    return;
  }
  const auto d = static_cast<std::size_t>(dimension);
  for (long i = 0; i < shape.sizes[d]; ++i) {
    scatter(to + i * shape.strides[d], from, shape, dimension + 1);
  }
}

}  // namespace

extern "C" {

// Reads the environment again, forgets violations, and checks memory that was freed.
void fakegpu_reset() {
  const std::scoped_lock lock(world().mutex);
  world().memory.check_freed();
  load_settings();
  seed_streams();
  world().broken = kCudaSuccess;
}

int fakegpu_violations() {
  const std::scoped_lock lock(world().mutex);
  world().memory.check_freed();
  return violation_count();
}

// Copies at most `length` bytes of the violations' texts, one a line.
void fakegpu_violation_texts(char* out, int length) {
  std::snprintf(out, static_cast<std::size_t>(length), "%s", violation_texts().c_str());
}

// Where device memory lies for the host: its first address, its alias, its size.
void fakegpu_arena(std::uintptr_t* base, std::uintptr_t* alias, std::size_t* bytes) {
  const std::scoped_lock lock(world().mutex);
  *base = world().memory.device_base();
  *alias = reinterpret_cast<std::uintptr_t>(world().memory.alias_base());
  *bytes = world().memory.device_bytes();
}

// A kernel on `stream` reads or writes bytes, which takes no time there. Returns 0 if
// they are valid.
int fakegpu_access(CUstream handle, CUdeviceptr address, std::size_t bytes,
                   int is_write, const char* label) {
  const std::scoped_lock lock(world().mutex);
  CUstream const stream = find_stream(handle, label);
  if (stream == nullptr) return 1;
  return note_accesses(stream, label, {{address, bytes, is_write != 0}}) ? 0 : 1;
}

// A kernel on `stream` writes a dense array, copied now, to a strided one. `bytes` is
// the number of bytes from the first item to the end of the last.
int fakegpu_write(CUstream handle, CUdeviceptr address, std::size_t bytes,
                  const void* dense, std::size_t items, int dimensions,
                  const long* sizes, const long* strides, std::size_t item,
                  const char* label) {
  const std::scoped_lock lock(world().mutex);
  CUstream const stream = find_stream(handle, label);
  if (stream == nullptr || dimensions > kMostDimensions) return 1;
  const auto* const begin = static_cast<const std::byte*>(dense);
  const std::vector<std::byte> copy(begin, begin + items * item);
  const Strided shape{
      dimensions, {sizes, sizes + dimensions}, {strides, strides + dimensions}, item};
  std::byte* const target = world().memory.alias(address);
  Task task{label,
            [=] {
              const std::byte* from = copy.data();
              if (!copy.empty()) scatter(target, from, shape, 0);
            },
            nullptr};
  return submit(stream, std::move(task), {{address, bytes, true}}) ? 0 : 1;
}

// The host reads or writes device memory, as where it gives the memory to another
// process. Returns 0 if that is valid.
int fakegpu_host_access(CUdeviceptr address, std::size_t bytes, int is_write,
                        const char* label) {
  const std::scoped_lock lock(world().mutex);
  World& all = world();
  all.host.advance(kHost);
  const Range range{address, bytes, is_write != 0};
  return all.memory.access(range, kHost, all.host, label) ? 0 : 1;
}

// Frees memory in the order of a stream, as torch's allocator does: later work of this
// stream may use it for something else.
int fakegpu_free_on(CUstream handle, CUdeviceptr address) {
  const std::scoped_lock lock(world().mutex);
  World& all = world();
  const char* const label = "a tensor that was freed";
  CUstream const stream = find_stream(handle, label);
  Allocation* const found = all.memory.find(address);
  if (stream == nullptr || found == nullptr || found->begin != address ||
      found->freed) {
    violation(label, "not the address of an allocation");
    return 1;
  }
  Task task{label,
            [address] {
              const std::scoped_lock inner(world().mutex);
              world().memory.poison(address);
            },
            nullptr};
  submit(stream, std::move(task), {{address, found->bytes, true}});
  all.memory.mark_freed(*found, std::string(label) + " on " + stream->name);
  return 0;
}

// The handle behind 0, for calls on threads without a context.
CUstream fakegpu_default_stream(int device) {
  const std::scoped_lock lock(world().mutex);
  CUstream& stream = world().legacy_streams.at(static_cast<std::size_t>(device));
  if (stream == nullptr) stream = add_stream(device, "the default stream");
  return stream;
}

// Waits until a stream has done its work, without the host having seen it: a program
// that does not synchronize must not become right by it.
void fakegpu_drain(CUstream handle) {
  std::unique_lock lock(world().mutex);
  CUstream const stream = find_stream(handle, "fakegpu_drain");
  if (stream == nullptr) return;
  const std::uint64_t last = stream->submitted;
  world().changed.wait(lock, [&] { return stream->completed >= last; });
}

// While a stream is held, its thread starts no task.
void fakegpu_hold(CUstream handle, int on) {
  const std::scoped_lock lock(world().mutex);
  CUstream const stream = find_stream(handle, "fakegpu_hold");
  if (stream == nullptr) return;
  stream->held = on != 0;
  stream->ready.notify_one();
}

// Limits how many more copies to the host start, on all streams together. There is no
// limit if the number is below 0.
void fakegpu_limit_copies_to_host(int number) {
  const std::scoped_lock lock(world().mutex);
  world().copies_to_host_left = number;
  wake_streams();
}

void fakegpu_set_capturing(CUstream handle, int on) {
  const std::scoped_lock lock(world().mutex);
  CUstream const stream = find_stream(handle, "fakegpu_set_capturing");
  if (stream != nullptr) stream->capturing = on != 0;
}

// As after a fault in a kernel: each later call fails with this code.
void fakegpu_break(int code) {
  const std::scoped_lock lock(world().mutex);
  world().broken = code;
}

void fakegpu_site(const char* label) { set_site_label(label); }

// Counts what this process has not given back, in the order of library.py's
// `_LIVE_IN_CUDA`.
void fakegpu_live(int* counts) {
  const std::scoped_lock lock(world().mutex);
  const World& all = world();
  int device = 0, pinned = 0, exported = 0, mapped = 0, retained = 0;
  int tensors = 0;
  for (const auto& [begin, one] : all.memory.allocations()) {
    if (one.freed) continue;
    if (one.is_pooled) {
      ++tensors;
    } else if (one.opened > 0) {
      ++mapped;
    } else {
      ++(one.is_device ? device : pinned);
    }
    if (one.is_exported) ++exported;
  }
  for (const CUctx_st& context : all.contexts) retained += context.retained;
  const auto is_live = [](const auto* one) { return !one->destroyed; };
  const int found[] = {static_cast<int>(std::ranges::count_if(all.streams, is_live)),
                       static_cast<int>(std::ranges::count_if(all.events, is_live)),
                       tensors,
                       device,
                       pinned,
                       exported,
                       mapped,
                       retained};
  std::ranges::copy(found, counts);
}

}  // extern "C"
