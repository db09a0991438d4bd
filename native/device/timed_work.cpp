// Measures what a device executes, by an event before and one behind it. Threads of the
// program, of the engine and of NcclQueue poll the later event anyway, and then ask for
// the time between the two. None of them waits for the device.
#include "device/timed_work.h"

#include <chrono>
#include <cstdint>
#include <utility>

#include "device/cuda_device.h"

namespace bluecomm::device {

WorkEnd::WorkEnd(std::shared_ptr<const CudaDevice> device, CudaStream stream,
                 std::shared_ptr<const StreamPoint> begun, std::string_view kind,
                 std::size_t nbytes)
    : StreamPoint(device, stream, Timing::kOn),
      device_(std::move(device)),
      begun_(std::move(begun)),
      kind_(kind),
      nbytes_(nbytes) {}

WorkEnd::~WorkEnd() {
  if (!device_->in_child()) count();
}

std::optional<Status> WorkEnd::poll() {
  std::optional<Status> outcome = StreamPoint::poll();
  if (outcome && outcome->ok()) count();
  return outcome;
}

void WorkEnd::count() noexcept {
  if (is_counted_) return;
  try {
    const std::optional<std::int64_t> ns = begun_->ns_until(*this);
    if (ns && !is_counted_.exchange(true)) device_->count_work(kind_, nbytes_, *ns);
  } catch (const CudaError&) {
    // The thread that waits for the work gets the error.
  }
}

TimedWork::TimedWork(const CudaDevice& device, CudaStream stream)
    : device_(device), stream_(stream), trace_(device.trace()) {
  if (trace_) trace_->prepare();
  begun_.host_time = std::chrono::steady_clock::now();
  begun_.point = device.make_point(stream, StreamPoint::Timing::kOn);
}

std::shared_ptr<StreamPoint> TimedWork::end(std::string_view row, std::string_view name,
                                            std::size_t nbytes) const {
  auto ended = std::make_shared<WorkEnd>(device_.shared_from_this(), stream_,
                                         begun_.point, name, nbytes);
  if (trace_) trace_->end(row, name, begun_, ended, nbytes);
  return ended;
}

}  // namespace bluecomm::device
