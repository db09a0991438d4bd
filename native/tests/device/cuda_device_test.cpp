#include "device/cuda_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "device/ipc_memory.h"
#include "device/pinned_memory.h"
#include "tests/check.h"

namespace bluecomm::test {
namespace {

using device::CudaContext;
using device::CudaDevice;
using device::CudaDriver;
using device::CudaError;
using device::CudaEvent;
using device::CudaFunctions;
using device::CudaIpcHandle;
using device::CudaStream;
using device::DeviceAddress;
using device::ExportedMemory;
using device::MappedMemory;
using device::PinnedMemory;

// A driver that writes its calls down and executes nothing but copies, at once. Device
// memory is that of the test.
struct Script {
  std::vector<std::string> calls;
  std::map<std::string, int> failures;  // function, result
  int depth = 0;                        // contexts on the stack
  int events = 0;                       // that exist
  int capturing = 0;
  int capture_mode = 0;  // of this thread
  int allocations = 0;
  int reached = 0;  // the next queries that find their event reached, whatever fails
};
Script script;

constexpr int kRelaxed = 2;

CudaStream stream_of(std::uintptr_t number) {
  return reinterpret_cast<CudaStream>(number);
}

constexpr std::uintptr_t kUser = 7;
constexpr std::uintptr_t kOurs = 9;

std::string number_of(const void* handle) {
  return std::to_string(reinterpret_cast<std::uintptr_t>(handle));
}

// Checks a call that needs a current context, and that another thread's capture of a
// graph must not disturb.
void check_scope() {
  CHECK(script.depth > 0);
  CHECK_EQ(script.capture_mode, kRelaxed);
}

int note(const std::string& function, const std::string& arguments) {
  check_scope();
  script.calls.push_back(function + " " + arguments);
  const auto failure = script.failures.find(function);
  return failure == script.failures.end() ? 0 : failure->second;
}

CudaFunctions scripted_functions() {
  CudaFunctions all{};
  all.init = [](unsigned) { return script.failures["init"]; };
  all.device_count = [](int* count) {
    *count = 2;
    return 0;
  };
  all.device_get = [](int* device, int ordinal) {
    *device = ordinal;
    return 0;
  };
  all.context_retain = [](CudaContext*, int) { return 0; };
  all.context_release = [](int) { return 0; };
  all.context_push = [](CudaContext) {
    ++script.depth;
    return 0;
  };
  all.context_pop = [](CudaContext*) {
    --script.depth;
    return 0;
  };
  all.stream_priorities = [](int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return 0;
  };
  all.stream_create = [](CudaStream* stream, unsigned flags, int priority) {
    *stream = stream_of(kOurs);
    return note("create",
                std::to_string(flags) + " priority " + std::to_string(priority));
  };
  all.stream_destroy = [](CudaStream) { return note("destroy", ""); };
  all.stream_wait = [](CudaStream stream, CudaEvent, unsigned) {
    return note("wait", number_of(stream));
  };
  all.stream_is_capturing = [](CudaStream, int* status) {
    *status = script.capturing;
    return script.failures["is_capturing"];
  };
  all.exchange_capture_mode = [](int* mode) {
    std::swap(*mode, script.capture_mode);
    return 0;
  };
  all.event_create = [](CudaEvent* event, unsigned) {
    *event = reinterpret_cast<CudaEvent>(std::uintptr_t{1});
    ++script.events;
    return 0;
  };
  all.event_record = [](CudaEvent, CudaStream stream) {
    return note("record", number_of(stream));
  };
  all.event_query = [](CudaEvent) {
    const int result = note("query", "");
    return script.reached > 0 && script.reached-- > 0 ? 0 : result;
  };
  all.event_destroy = [](CudaEvent) {
    --script.events;
    return 0;
  };
  all.event_elapsed = [](float* ms, CudaEvent, CudaEvent) {
    check_scope();
    if (script.failures["elapsed"] != 0) return script.failures["elapsed"];
    *ms = 0.5F;
    return 0;
  };
  all.host_allocate = [](void** memory, std::size_t nbytes, unsigned) {
    check_scope();
    ++script.allocations;
    *memory = ::operator new(nbytes);
    return 0;
  };
  all.host_free = [](void* memory) {
    check_scope();
    --script.allocations;
    ::operator delete(memory);
    return 0;
  };
  all.copy_to_host = [](void* to, DeviceAddress from, std::size_t nbytes,
                        CudaStream stream) {
    std::memcpy(to, reinterpret_cast<const void*>(from), nbytes);
    return note("to_host", number_of(stream));
  };
  all.copy_to_device = [](DeviceAddress to, const void* from, std::size_t nbytes,
                          CudaStream stream) {
    std::memcpy(reinterpret_cast<void*>(to), from, nbytes);
    return note("to_device", number_of(stream));
  };
  all.copy_on_device = [](DeviceAddress to, DeviceAddress from, std::size_t nbytes,
                          CudaStream stream) {
    std::memcpy(reinterpret_cast<void*>(to), reinterpret_cast<const void*>(from),
                nbytes);
    return note("on_device", number_of(stream));
  };
  all.allocate = [](DeviceAddress* memory, std::size_t nbytes) {
    *memory = 4096;
    return note("allocate", std::to_string(nbytes));
  };
  all.free = [](DeviceAddress memory) { return note("free", std::to_string(memory)); };
  all.ipc_export = [](CudaIpcHandle* handle, DeviceAddress memory) {
    handle->bytes.fill('x');
    return note("export", std::to_string(memory));
  };
  all.ipc_open = [](DeviceAddress* memory, CudaIpcHandle handle, unsigned flags) {
    *memory = 8192;
    return note("open",
                std::string(handle.bytes.data(), 2) + " " + std::to_string(flags));
  };
  all.ipc_close = [](DeviceAddress memory) {
    return note("close", std::to_string(memory));
  };
  all.error_name = [](int, const char** name) {
    *name = "CUDA_ERROR_ILLEGAL_ADDRESS";
    return 0;
  };
  all.error_text = [](int, const char** text) {
    *text = "an illegal memory access";
    return 0;
  };
  return all;
}

std::shared_ptr<CudaDevice> make_device(int ordinal = 0) {
  script = Script();
  return std::make_shared<CudaDevice>(
      std::make_shared<const CudaDriver>(scripted_functions()), ordinal);
}

template <typename Body>
std::string error_of(Body&& body) {
  try {
    body();
  } catch (const CudaError& error) {
    return error.what();
  }
  return "";
}

std::array<CudaStream, 1> user_stream() { return {stream_of(kUser)}; }

constexpr std::array<CudaStream, 1> kDefaultStream{nullptr};

struct CopiedValues {
  std::array<std::byte, 4> device{std::byte{1}, std::byte{2}, std::byte{3},
                                  std::byte{4}};
  std::array<std::byte, 4> host{};
  DeviceAddress address() { return reinterpret_cast<DeviceAddress>(device.data()); }
};

TEST(cuda_device, copies_to_the_host_behind_the_work_of_the_program) {
  const auto device = make_device();
  CHECK_EQ(script.calls.at(0), "create 1 priority -5");
  script.calls.clear();
  CopiedValues values;
  const auto copy = device->copy_to_host(values.address(), values.host, user_stream());
  CHECK(values.host == values.device);
  const std::vector<std::string> expected{"record 7", "wait 9", "record 9", "to_host 9",
                                          "record 9"};
  CHECK(script.calls == expected);
  CHECK_EQ(script.events, 2);  // those around the copy are left
  CHECK_EQ(script.depth, 0);
  CHECK_EQ(script.capture_mode, 0);
}

TEST(cuda_device, copies_behind_the_work_of_several_streams) {
  const auto device = make_device();
  script.calls.clear();
  CopiedValues values;
  const std::array<CudaStream, 2> streams{stream_of(kUser), nullptr};
  const auto copy = device->copy_to_host(values.address(), values.host, streams);
  const std::vector<std::string> expected{"record 7", "wait 9",    "record 0", "wait 9",
                                          "record 9", "to_host 9", "record 9"};
  CHECK(script.calls == expected);
  CHECK_EQ(script.events, 2);
}

TEST(cuda_device, copies_large_tensors_in_parts) {
  const auto device = make_device();
  constexpr std::size_t kPart = std::size_t{4} << 20;
  std::vector<std::byte> values(2 * kPart + 12);
  for (std::size_t i = 0; i < values.size(); ++i) {
    values[i] = static_cast<std::byte>(i % 251);
  }
  std::vector<std::byte> host(values.size());
  script.calls.clear();
  const auto copy = device->copy_to_host(reinterpret_cast<DeviceAddress>(values.data()),
                                         host, user_stream());
  CHECK(host == values);
  const std::vector<std::string> expected{"record 7",  "wait 9",    "record 9",
                                          "to_host 9", "record 9",  "to_host 9",
                                          "record 9",  "to_host 9", "record 9"};
  CHECK(script.calls == expected);
  CHECK_EQ(script.events, 4);

  script.failures["query"] = device::kCudaNotReady;
  CHECK(!copy->poll().has_value());
  CHECK_EQ(copy->written(), 0U);
  script.reached = 2;
  CHECK(!copy->poll().has_value());
  CHECK_EQ(copy->written(), 2 * kPart);
  CHECK_EQ(script.events, 2);
  script.failures.clear();
  CHECK(copy->poll()->ok());
}

TEST(cuda_device, copies_to_the_device_in_the_order_of_the_program) {
  const auto device = make_device();
  script.calls.clear();
  CopiedValues values;
  const auto copy =
      device->copy_to_device(values.host, values.address(), stream_of(kUser));
  CHECK(values.device == values.host);
  const std::vector<std::string> expected{"record 7", "to_device 7", "record 7"};
  CHECK(script.calls == expected);
  CHECK_EQ(script.depth, 0);
}

TEST(cuda_device, reports_the_end_of_a_copy) {
  const auto device = make_device();
  CopiedValues values;
  const auto copy = device->copy_to_host(values.address(), values.host, user_stream());
  script.failures["query"] = device::kCudaNotReady;
  CHECK(!copy->poll().has_value());
  script.failures["query"] = 0;
  CHECK(copy->poll()->ok());
  script.failures["query"] = 700;
  const Status failed = *copy->poll();
  CHECK(failed.code == Code::kInternal);
  CHECK_EQ(failed.text,
           "cuEventQuery on CUDA device 0: CUDA_ERROR_ILLEGAL_ADDRESS (an illegal "
           "memory access); a kernel or copy that the program has started before "
           "failed, perhaps long before this call; set CUDA_LAUNCH_BLOCKING=1 to find "
           "it");
  CHECK_EQ(script.depth, 0);
}

TEST(cuda_device, names_the_rank_in_errors) {
  const auto device = make_device();
  device->name_rank(3);
  script.failures["record"] = 700;
  CHECK(error_of([&] {
          device->point_behind(stream_of(kUser));
        }).starts_with("cuEventRecord on CUDA device 0 of rank 3: CUDA_ERROR_"));
}

TEST(cuda_device, counts_a_copy_once_when_it_has_ended) {
  const auto device = make_device();
  CopiedValues values;
  auto copy = device->copy_to_host(values.address(), values.host, user_stream());
  script.failures["query"] = device::kCudaNotReady;
  CHECK(!copy->poll().has_value());
  CHECK(device->work().empty());
  script.failures.clear();
  CHECK(copy->poll()->ok());
  CHECK(copy->poll()->ok());
  copy.reset();
  const auto counted = device->work();
  CHECK_EQ(counted.size(), 1U);
  CHECK_EQ(counted.at("COPY_TO_HOST").count, 1U);
  CHECK_EQ(counted.at("COPY_TO_HOST").nbytes, 4U);
  CHECK_EQ(counted.at("COPY_TO_HOST").ns, 500'000);
}

TEST(cuda_device, counts_a_copy_that_was_dropped_if_it_has_ended) {
  const auto device = make_device();
  CopiedValues values;
  device->copy_to_device(values.host, values.address(), stream_of(kUser)).reset();
  CHECK_EQ(device->work().at("COPY_TO_DEVICE").count, 1U);
  script.failures["elapsed"] = device::kCudaNotReady;
  device->copy_to_device(values.host, values.address(), stream_of(kUser)).reset();
  CHECK_EQ(device->work().at("COPY_TO_DEVICE").count, 1U);
  CHECK_EQ(script.events, 0);
}

TEST(cuda_device, refuses_the_capture_of_a_graph) {
  const auto device = make_device();
  CopiedValues values;
  script.capturing = 1;
  const std::string captures = "captures a CUDA graph";
  CHECK(error_of([&] {
          device->copy_to_host(values.address(), values.host, user_stream());
        }).find(captures) != std::string::npos);
  CHECK(error_of([&] {
          device->copy_to_device(values.host, values.address(), stream_of(kUser));
        }).find(captures) != std::string::npos);
  // The default stream, while another one captures.
  script.capturing = 0;
  script.failures["is_capturing"] = 906;
  CHECK(error_of([&] {
          device->copy_to_host(values.address(), values.host, kDefaultStream);
        }).find(captures) != std::string::npos);
  script.failures["is_capturing"] = 700;
  CHECK(error_of([&] {
          device->copy_to_host(values.address(), values.host, kDefaultStream);
        })
            .starts_with(
                "cuStreamIsCapturing on CUDA device 0: CUDA_ERROR_ILLEGAL_ADDRESS"));
}

TEST(cuda_device, releases_everything_after_an_error) {
  const auto device = make_device();
  CopiedValues values;
  for (const char* const function : {"record", "wait", "to_host"}) {
    script.failures = {{function, 700}};
    CHECK(error_of([&] {
            device->copy_to_host(values.address(), values.host, user_stream());
          }).find("CUDA_ERROR_ILLEGAL_ADDRESS") != std::string::npos);
    CHECK_EQ(script.events, 0);
    CHECK_EQ(script.depth, 0);
  }
}

TEST(cuda_device, that_does_not_exist_is_refused) {
  CHECK_EQ(error_of([] { make_device(2); }),
           "there is no CUDA device 2; this process sees 2 devices");
  script.failures["init"] = 100;
  CHECK(error_of([] {
          const CudaDriver driver(scripted_functions());
        }).starts_with("cuInit: CUDA_ERROR"));
  CHECK(error_of([] {
          device::open_driver("libno-cuda.so");
        }).starts_with("CUDA's driver cannot be loaded: libno-cuda.so"));
  CHECK_EQ(error_of([] { device::open_driver("libc.so.6"); }),
           "CUDA's driver lacks cuInit; install a newer driver");
}

TEST(cuda_device, is_refused_in_a_forked_child) {
  auto device = make_device();
  const auto memory = std::make_shared<PinnedMemory>(device);
  memory->allocate(1).reset();  // leaves a free block
  CopiedValues values;
  auto copy = device->copy_to_host(values.address(), values.host, user_stream());
  const pid_t child = ::fork();
  if (child == 0) {
    const std::size_t calls = script.calls.size();
    const bool refused = error_of([&] {
                           memory->allocate(1);
                         }).find("is a fork of process") != std::string::npos &&
                         !copy->poll()->ok();
    copy.reset();
    device.reset();
    ::_exit(refused && script.calls.size() == calls ? 0 : 1);
  }
  int status = 0;
  CHECK_EQ(::waitpid(child, &status, 0), child);
  CHECK_EQ(status, 0);
}

TEST(pinned_memory, is_reused) {
  const auto memory = std::make_shared<PinnedMemory>(make_device());
  auto block = memory->allocate(5000);
  CHECK_EQ(block->bytes().size(), 5000U);
  const std::byte* const address = block->bytes().data();
  const auto other = memory->allocate(5000);
  CHECK(other->bytes().data() != address);
  block.reset();
  block = memory->allocate(8000);
  CHECK(block->bytes().data() == address);
  CHECK_EQ(script.allocations, 2);
}

TEST(pinned_memory, goes_back_to_the_system_when_enough_is_free) {
  const auto memory = std::make_shared<PinnedMemory>(make_device());
  constexpr std::size_t kMore = std::size_t{600} << 20;  // than half of what is kept
  auto kept = memory->allocate(kMore);
  auto excess = memory->allocate(kMore);
  CHECK(kept->reuse());
  CHECK(kept->bytes().empty());
  CHECK(!excess->reuse());
  CHECK_EQ(excess->bytes().size(), kMore);
  kept.reset();
  CHECK_EQ(script.allocations, 2);
  excess.reset();
  CHECK_EQ(script.allocations, 1);
}

TEST(pinned_memory, is_freed_with_its_allocator) {
  auto memory = std::make_shared<PinnedMemory>(make_device());
  auto block = memory->allocate(std::size_t{3} << 20);
  memory.reset();
  CHECK_EQ(script.allocations, 1);
  block.reset();
  CHECK_EQ(script.allocations, 0);
}

TEST(cuda_device, shares_memory_in_whole_blocks_and_ends_it_once) {
  const auto device = make_device();
  script.calls.clear();
  {
    ExportedMemory exported(device, 5);
    CHECK_EQ(exported.address(), 4096U);
    MappedMemory mapped(device, exported.handle());
    CHECK_EQ(mapped.address(), 8192U);
    mapped.close();
    exported.free();
  }
  const std::vector<std::string> expected{"allocate 2097152", "export 4096",
                                          "open xx 1", "close 8192", "free 4096"};
  CHECK(script.calls == expected);
  CHECK_EQ(script.depth, 0);
}

TEST(cuda_device, memory_that_cannot_be_exported_is_freed) {
  const auto device = make_device();
  script.failures["export"] = 1;
  script.calls.clear();
  const std::string error = error_of([&] { const ExportedMemory memory(device, 5); });
  CHECK(error.find("cuIpcGetMemHandle") != std::string::npos);
  const std::vector<std::string> expected{"allocate 2097152", "export 4096",
                                          "free 4096"};
  CHECK(script.calls == expected);
  script.failures["open"] = 1;
  const std::string other = error_of([&] { const MappedMemory memory(device, {}); });
  CHECK(other.find("cuIpcOpenMemHandle") != std::string::npos);
}

TEST(cuda_device, copies_between_devices_in_the_order_of_a_stream) {
  const auto device = make_device();
  script.calls.clear();
  CopiedValues values;
  device->copy_on_device(values.address(),
                         reinterpret_cast<DeviceAddress>(values.host.data()), 4,
                         stream_of(kUser));
  CHECK(values.host == values.device);
  CHECK_EQ(script.calls.at(0), "on_device 7");
}

}  // namespace
}  // namespace bluecomm::test
