#include "device/stream_point.h"

#include <cmath>
#include <utility>

#include "device/cuda_device.h"

namespace bluecomm::device {
namespace {

// Constants of CUDA's interface.
constexpr unsigned kEventDefault = 0;
constexpr unsigned kEventWithoutTiming = 2;

}  // namespace

StreamPoint::StreamPoint(std::shared_ptr<const CudaDevice> device, CudaStream stream,
                         Timing timing)
    : device_(std::move(device)) {
  const CudaDriver& driver = device_->driver();
  const unsigned flags = timing == Timing::kOn ? kEventDefault : kEventWithoutTiming;
  device_->check(driver.call().event_create(&event_, flags), "cuEventCreate");
  const int result = driver.call().event_record(event_, stream);
  if (result == 0) return;
  driver.call().event_destroy(event_);
  device_->check(result, "cuEventRecord");
}

StreamPoint::~StreamPoint() {
  if (device_->in_child()) return;
  try {
    const ContextScope scope(*device_);
    device_->driver().call().event_destroy(event_);
  } catch (const CudaError&) {
    // CUDA has ended before this object.
  }
}

void StreamPoint::precede(CudaStream stream) const {
  const CudaDriver& driver = device_->driver();
  device_->check(driver.call().stream_wait(stream, event_, 0), "cuStreamWaitEvent");
}

std::optional<std::int64_t> StreamPoint::ns_until(const StreamPoint& other) const {
  const ContextScope scope(*device_);
  const CudaDriver& driver = device_->driver();
  float ms = 0;
  const int result = driver.call().event_elapsed(&ms, event_, other.event_);
  if (result == kCudaNotReady) return std::nullopt;
  device_->check(result, "cuEventElapsedTime");
  return std::llround(static_cast<double>(ms) * 1e6);
}

std::optional<Status> StreamPoint::poll() {
  try {
    const ContextScope scope(*device_);
    const CudaDriver& driver = device_->driver();
    const int result = driver.call().event_query(event_);
    if (result == kCudaNotReady) return std::nullopt;
    device_->check(result, "cuEventQuery");
    return Status{};
  } catch (const CudaError& error) {
    return Status{Code::kInternal, error.what(), -1};
  }
}

}  // namespace bluecomm::device
