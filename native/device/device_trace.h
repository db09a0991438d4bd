#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <string_view>

#include "common/mutex.h"
#include "device/cuda_driver.h"
#include "device/stream_point.h"
#include "trace/recorder.h"

namespace bluecomm::device {

class CudaDevice;

// Records in a timeline when a device has copied, or has executed calls of NCCL, on the
// clock of the host.
//
// A device tells only the times between two events. No event can have been passed
// before the host recorded it, so each bounds the difference of the two clocks from
// below, and the largest bound is taken for it: an event on an idle stream follows its
// recording within microseconds. The bounds are collected anew each second, because the
// clocks drift. Thread-safe.
class DeviceTrace {
 public:
  // Begun work, and the host's time at which it was handed over.
  struct Begun {
    std::shared_ptr<StreamPoint> point;
    std::chrono::steady_clock::time_point host_time;
  };

  // The context of `device`, which outlives the object, is current. Throws CudaError.
  DeviceTrace(const CudaDevice& device, std::shared_ptr<Recorder> recorder);
  ~DeviceTrace();
  DeviceTrace(const DeviceTrace&) = delete;
  DeviceTrace& operator=(const DeviceTrace&) = delete;

  // Prepares the clock for work that begins now. The context is current. Throws
  // CudaError.
  void prepare();
  // Notes the work `name` between two points of a stream, in the row `row`, and records
  // the work noted before that the device has finished. Ignores errors of CUDA, which
  // show where the work is waited for.
  void end(std::string_view row, std::string_view name, const Begun& begun,
           std::shared_ptr<StreamPoint> ended, std::size_t nbytes);
  // Records the work that the device has finished, and returns how much it has not.
  std::size_t collect();

 private:
  // An event of the device, and how far the host's clock is ahead of the time since it.
  struct Reference {
    std::shared_ptr<StreamPoint> point;
    std::chrono::steady_clock::time_point made_at;
    std::int64_t offset_ns;
  };
  struct Span {
    std::shared_ptr<Reference> reference;
    Begun begun;
    std::shared_ptr<StreamPoint> ended;
    Event event;
  };

  std::shared_ptr<Reference> make_reference() const;
  bool record(Span& span);

  const CudaDevice& device_;
  const std::shared_ptr<Recorder> recorder_;
  const CudaStream stream_;  // of the references; idle otherwise
  Mutex mutex_;
  std::shared_ptr<Reference> reference_ GUARDED_BY(mutex_);
  std::deque<Span> spans_ GUARDED_BY(mutex_);  // unrecorded
};

}  // namespace bluecomm::device
