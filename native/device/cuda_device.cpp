// Copies tensors between a CUDA device and the host. Threads of the program call these
// functions; the engine's leading thread polls the points that they return.
#include "device/cuda_device.h"

#include <unistd.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "device/copy_in_parts.h"
#include "device/device_trace.h"
#include "device/timed_work.h"

namespace bluecomm::device {
namespace {

// Constants of CUDA's interface.
constexpr unsigned kStreamNonBlocking = 1;
constexpr int kCaptureModeRelaxed = 2;
constexpr int kCaptureForbids = 900;  // the error of calls during a capture

}  // namespace

ContextScope::ContextScope(const CudaDevice& device)
    : driver_(*device.driver_), capture_mode_(kCaptureModeRelaxed) {
  if (device.in_child()) {
    throw CudaError("this process is a fork of process " +
                    std::to_string(device.owner_) +
                    ", which uses CUDA, so CUDA works only there; start processes with "
                    "the method 'spawn'");
  }
  device.check(driver_.call().context_push(device.context_), "cuCtxPushCurrent");
  driver_.call().exchange_capture_mode(&capture_mode_);
}

ContextScope::~ContextScope() {
  driver_.call().exchange_capture_mode(&capture_mode_);
  CudaContext ignored = nullptr;
  driver_.call().context_pop(&ignored);
}

CudaDevice::CudaDevice(std::shared_ptr<const CudaDriver> driver, int ordinal)
    : driver_(std::move(driver)), ordinal_(ordinal), owner_(::getpid()) {
  const CudaFunctions& cuda = driver_->call();
  const int count = driver_->device_count();
  if (ordinal < 0 || ordinal >= count) {
    throw CudaError("there is no " + name() + "; this process sees " +
                    std::to_string(count) + " devices");
  }
  check(cuda.device_get(&device_, ordinal), "cuDeviceGet");
  check(cuda.context_retain(&context_, device_), "cuDevicePrimaryCtxRetain");
  try {
    to_host_ = create_stream();
  } catch (const CudaError&) {
    cuda.context_release(device_);
    throw;
  }
}

CudaDevice::~CudaDevice() {
  if (in_child()) return;
  destroy_stream(to_host_);
  driver_->call().context_release(device_);
}

CudaStream CudaDevice::create_stream() const {
  const ContextScope scope(*this);
  const CudaFunctions& cuda = driver_->call();
  int least = 0;
  int greatest = 0;
  check(cuda.stream_priorities(&least, &greatest), "cuCtxGetStreamPriorityRange");
  CudaStream stream = nullptr;
  check(cuda.stream_create(&stream, kStreamNonBlocking, greatest),
        "cuStreamCreateWithPriority");
  return stream;
}

void CudaDevice::destroy_stream(CudaStream stream) const noexcept {
  try {
    const ContextScope scope(*this);
    driver_->call().stream_destroy(stream);
  } catch (const CudaError&) {
    // CUDA has ended before this object, or this process is a fork.
  }
}

std::shared_ptr<StreamPoint> CudaDevice::point_behind(CudaStream stream) const {
  const ContextScope scope(*this);
  check_not_capturing(stream);
  return make_point(stream, StreamPoint::Timing::kOff);
}

std::shared_ptr<StreamPoint> CudaDevice::make_point(CudaStream stream,
                                                    StreamPoint::Timing timing) const {
  return std::make_shared<StreamPoint>(shared_from_this(), stream, timing);
}

void CudaDevice::wait_for(const StreamPoint& point, CudaStream stream) const {
  const ContextScope scope(*this);
  point.precede(stream);
}

std::shared_ptr<Gate> CudaDevice::copy_to_host(
    DeviceAddress from, std::span<std::byte> to,
    std::span<const CudaStream> streams) const {
  const ContextScope scope(*this);
  for (CudaStream const stream : streams) check_not_capturing(stream);
  for (CudaStream const stream : streams) {
    StreamPoint(shared_from_this(), stream).precede(to_host_);
  }
  const TimedWork work(*this, to_host_);
  const std::size_t length = part_of(to.size());
  std::vector<CopyInParts::Part> parts;
  for (std::size_t begin = 0; begin < to.size(); begin += length) {
    const std::size_t end = std::min(begin + length, to.size());
    check(driver_->call().copy_to_host(to.data() + begin, from + begin, end - begin,
                                       to_host_),
          "cuMemcpyDtoHAsync");
    if (end < to.size()) {
      parts.push_back({end, make_point(to_host_, StreamPoint::Timing::kOff)});
    }
  }
  auto last = work.end("copies to the host", "COPY_TO_HOST", to.size());
  if (parts.empty()) return last;
  parts.push_back({to.size(), std::move(last)});
  return std::make_shared<CopyInParts>(std::move(parts));
}

std::shared_ptr<StreamPoint> CudaDevice::copy_to_device(std::span<const std::byte> from,
                                                        DeviceAddress to,
                                                        CudaStream stream) const {
  const ContextScope scope(*this);
  check_not_capturing(stream);
  const TimedWork work(*this, stream);
  check(driver_->call().copy_to_device(to, from.data(), from.size(), stream),
        "cuMemcpyHtoDAsync");
  return work.end("copies to the device", "COPY_TO_DEVICE", from.size());
}

void CudaDevice::copy_on_device(DeviceAddress from, DeviceAddress to,
                                std::size_t nbytes, CudaStream stream) const {
  const ContextScope scope(*this);
  check_not_capturing(stream);
  check(driver_->call().copy_on_device(to, from, nbytes, stream), "cuMemcpyDtoDAsync");
}

void CudaDevice::start_trace(std::shared_ptr<Recorder> recorder) {
  const ContextScope scope(*this);
  auto started = std::make_shared<DeviceTrace>(*this, std::move(recorder));
  const LockGuard lock(trace_mutex_);
  trace_ = std::move(started);
}

std::size_t CudaDevice::collect_trace() {
  if (in_child()) return 0;
  const std::shared_ptr<DeviceTrace> running = trace();
  return running ? running->collect() : 0;
}

void CudaDevice::stop_trace() {
  if (in_child()) return;
  std::shared_ptr<DeviceTrace> stopped;
  {
    const LockGuard lock(trace_mutex_);
    stopped = std::move(trace_);
    trace_ = nullptr;
  }
  if (stopped) stopped->collect();
}

std::shared_ptr<DeviceTrace> CudaDevice::trace() const {
  const LockGuard lock(trace_mutex_);
  return trace_;
}

std::map<std::string, CudaDevice::WorkTotal, std::less<>> CudaDevice::work() const {
  const LockGuard lock(work_mutex_);
  return work_;
}

void CudaDevice::count_work(std::string_view kind, std::size_t nbytes,
                            std::int64_t ns) const {
  const LockGuard lock(work_mutex_);
  auto found = work_.find(kind);
  if (found == work_.end()) found = work_.emplace(kind, WorkTotal{}).first;
  WorkTotal& total = found->second;
  ++total.count;
  total.nbytes += nbytes;
  total.ns += ns;
}

void CudaDevice::check_not_capturing(CudaStream stream) const {
  int status = 0;
  const int result = driver_->call().stream_is_capturing(stream, &status);
  check(result == 0 && status != 0 ? kCaptureForbids : result, "cuStreamIsCapturing");
}

std::string CudaDevice::name() const {
  return "CUDA device " + std::to_string(ordinal_);
}

void CudaDevice::check(int result, const char* function) const {
  if (result == 0) return;
  std::string where = std::string(function) + " on " + name();
  if (rank_ >= 0) where += " of rank " + std::to_string(rank_);
  driver_->check(result, where.c_str());
}

bool CudaDevice::in_child() const { return ::getpid() != owner_; }

}  // namespace bluecomm::device
