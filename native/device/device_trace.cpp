// Turns events of a device into slices of a timeline. CudaDevice and the thread of
// NcclQueue note the begin and the end of what they hand to the device; whichever of
// them comes next records what has ended meanwhile. Neither waits for the device.
#include "device/device_trace.h"

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "device/cuda_device.h"

namespace bluecomm::device {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::chrono::seconds kReferenceLife{1};

// Work that the device may have begun and not finished. More is not recorded.
constexpr std::size_t kMostSpans = 4096;

}  // namespace

DeviceTrace::DeviceTrace(const CudaDevice& device, std::shared_ptr<Recorder> recorder)
    : device_(device),
      recorder_(std::move(recorder)),
      stream_(device.create_stream()) {}

DeviceTrace::~DeviceTrace() { device_.destroy_stream(stream_); }

void DeviceTrace::prepare() {
  const LockGuard lock(mutex_);
  if (!reference_ || Clock::now() - reference_->made_at > kReferenceLife) {
    reference_ = make_reference();
  }
}

std::shared_ptr<DeviceTrace::Reference> DeviceTrace::make_reference() const {
  const Clock::time_point now = Clock::now();
  return std::make_shared<Reference>(Reference{
      device_.make_point(stream_, StreamPoint::Timing::kOn), now, to_ns(now)});
}

void DeviceTrace::end(std::string_view row, std::string_view name, const Begun& begun,
                      std::shared_ptr<StreamPoint> ended, std::size_t nbytes) {
  Event event;
  event.type = EventType::kDevice;
  event.a = nbytes;
  event.name = recorder_->name(name);
  event.label = recorder_->name(device_.name() + ", " + std::string(row));
  {
    const LockGuard lock(mutex_);
    if (reference_ && spans_.size() < kMostSpans) {
      spans_.push_back({reference_, begun, std::move(ended), event});
    }
  }
  collect();
}

std::size_t DeviceTrace::collect() {
  const LockGuard lock(mutex_);
  // Streams overtake each other, so any span may be ready.
  std::erase_if(spans_, [this](Span& span) { return record(span); });
  return spans_.size();
}

// Returns whether the span is done with: recorded, or lost with an error of CUDA.
bool DeviceTrace::record(Span& span) {
  try {
    Reference& reference = *span.reference;
    const StreamPoint& zero = *reference.point;
    const std::optional<std::int64_t> ended = zero.ns_until(*span.ended);
    const std::optional<std::int64_t> begun = zero.ns_until(*span.begun.point);
    if (!begun || !ended) return false;
    reference.offset_ns =
        std::max(reference.offset_ns, to_ns(span.begun.host_time) - *begun);
    span.event.begin_ns = reference.offset_ns + *begun;
    span.event.end_ns = std::max(span.event.begin_ns, reference.offset_ns + *ended);
    recorder_->add(span.event);
  } catch (const CudaError&) {
    // The thread that waits for the work gets the error.
  }
  return true;
}

}  // namespace bluecomm::device
