#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "common/gate.h"
#include "common/mutex.h"
#include "device/cuda_driver.h"
#include "device/stream_point.h"
#include "trace/recorder.h"

namespace bluecomm::device {

class DeviceTrace;

// One CUDA device, and the stream on which bluecomm copies tensors from it. The program
// uses the same context, which is the primary one. No function waits for the device.
// Thread-safe.
class CudaDevice final : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Throws CudaError, also if there is no such device.
  CudaDevice(std::shared_ptr<const CudaDriver> driver, int ordinal);
  ~CudaDevice();
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  // Copies what `streams` have computed so far. The gate opens behind the copy, and
  // knows how much of a large tensor has been copied. Later work of `streams` does not
  // wait for the copy, so it must not write to `from` before the copy has ended. Throws
  // CudaError, also while one of them captures a CUDA graph.
  std::shared_ptr<Gate> copy_to_host(DeviceAddress from, std::span<std::byte> to,
                                     std::span<const CudaStream> streams) const;
  // Copies in the order of `stream`. `from` must not change before the copy has ended.
  // Throws CudaError, as copy_to_host() does.
  std::shared_ptr<StreamPoint> copy_to_device(std::span<const std::byte> from,
                                              DeviceAddress to,
                                              CudaStream stream) const;

  // Copies between memory of this device and memory of it or of another one that is
  // mapped, in the order of `stream`. Throws CudaError, as copy_to_host() does.
  void copy_on_device(DeviceAddress from, DeviceAddress to, std::size_t nbytes,
                      CudaStream stream) const;

  // Returns the point behind what `stream` has been given so far. Throws CudaError,
  // also while it captures a CUDA graph.
  std::shared_ptr<StreamPoint> point_behind(CudaStream stream) const;
  // Makes the later work of `stream` wait for a point of this device. Throws CudaError.
  void wait_for(const StreamPoint& point, CudaStream stream) const;

  // Creates a stream of the highest priority, which does not wait for the default
  // stream. The caller destroys it. Throws CudaError.
  CudaStream create_stream() const;
  void destroy_stream(CudaStream stream) const noexcept;

  // Has `recorder` show the copies, and NCCL's calls, that begin from now on. Throws
  // CudaError.
  void start_trace(std::shared_ptr<Recorder> recorder);
  // Records what the device has finished, and returns how many copies and calls it has
  // not; 0 without a recorder.
  std::size_t collect_trace();
  // Records what the device has finished, and forgets the rest.
  void stop_trace();
  // Null without a recorder.
  std::shared_ptr<DeviceTrace> trace() const;
  // As point_behind(), for a stream that does not capture. The context is current.
  std::shared_ptr<StreamPoint> make_point(CudaStream stream,
                                          StreamPoint::Timing timing) const;

  // Copies and calls of NCCL of one kind that were seen to have ended, the bytes of
  // their inputs, and the time that the device took. NCCL's includes waits for other
  // ranks.
  struct WorkTotal {
    std::uint64_t count = 0;
    std::uint64_t nbytes = 0;
    std::int64_t ns = 0;
  };
  // Returns the counters by kind.
  std::map<std::string, WorkTotal, std::less<>> work() const;
  // Adds one to the counters of a kind.
  void count_work(std::string_view kind, std::size_t nbytes, std::int64_t ns) const;

  // Has errors of CUDA name the rank of this process from now on.
  void name_rank(int rank) { rank_ = rank; }
  // Throws CudaError unless `result` is success. It names `function`, the device and
  // the rank.
  void check(int result, const char* function) const;

  const CudaDriver& driver() const { return *driver_; }
  // Returns a text such as "CUDA device 0".
  std::string name() const;
  // Whether this process is a fork of the one that made the object, and cannot use it.
  bool in_child() const;

 private:
  friend class ContextScope;
  void check_not_capturing(CudaStream stream) const;

  const std::shared_ptr<const CudaDriver> driver_;
  const int ordinal_;
  const int owner_;             // process
  std::atomic<int> rank_ = -1;  // of this process; -1: not known
  int device_ = 0;
  CudaContext context_ = nullptr;
  CudaStream to_host_ = nullptr;
  mutable Mutex trace_mutex_;
  std::shared_ptr<DeviceTrace> trace_ GUARDED_BY(trace_mutex_);
  mutable Mutex work_mutex_;
  mutable std::map<std::string, WorkTotal, std::less<>> work_ GUARDED_BY(work_mutex_);
};

// Makes the context of a device current on this thread during its lifetime. Calls in it
// neither fail while another thread captures a CUDA graph, nor invalidate that capture.
class ContextScope {
 public:
  // Throws CudaError, also in a forked child.
  explicit ContextScope(const CudaDevice& device);
  ~ContextScope();
  ContextScope(const ContextScope&) = delete;
  ContextScope& operator=(const ContextScope&) = delete;

 private:
  const CudaDriver& driver_;
  int capture_mode_;  // this thread's mode to restore
};

}  // namespace bluecomm::device
