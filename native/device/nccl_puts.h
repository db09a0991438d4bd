#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "common/mutex.h"
#include "device/cuda_device.h"
#include "device/nccl_comm.h"
#include "device/nccl_library.h"
#include "device/stream_point.h"

namespace bluecomm::device {

// Device memory of this rank into which the others put by NCCL's one-sided functions,
// and from which this rank puts into theirs. It has a communicator and a stream of its
// own.
//
// Each function but advance() begins something; call advance() until it returns true
// before the next one. No function waits for the device or for another rank. After an
// error every call fails, and the memory stays readable. Thread-safe; the callers see
// to the order of their calls.
class NcclPuts {
 public:
  // Allocates `nbytes`. Throws NcclError, also if NCCL is older than 2.29.2, and
  // CudaError.
  NcclPuts(std::shared_ptr<const NcclLibrary> library,
           std::shared_ptr<const CudaDevice> device, std::size_t nbytes);
  // Aborts, unless close() has ended. Frees the memory, which nothing may use any more.
  // In a forked child the object leaks what it has.
  ~NcclPuts();
  NcclPuts(const NcclPuts&) = delete;
  NcclPuts& operator=(const NcclPuts&) = delete;

  DeviceAddress address() const { return memory_; }

  // Begins to connect the ranks, which pass the same id. Called once, before all
  // others.
  void connect(const NcclId& id, int rank, int size);

  // Continues what was begun. Returns whether it has ended.
  // Throws NcclError and CudaError.
  bool advance();

  // Puts bytes at offset `from` of the memory, as `stream` has left them so far, to
  // offset `to` of the memory of `peer`.
  void put(int peer, std::size_t from, std::size_t to, std::size_t nbytes,
           CudaStream stream);
  // Waits on the device for the next `count` puts of `peer`.
  void await_puts(int peer, int count);
  // Returns the point behind the last put, or the last wait. A put's memory may be used
  // again from this point on; it says nothing about the target.
  std::shared_ptr<StreamPoint> point() const;

  // Ends the communicator in order, when no rank puts any more.
  void close();
  // Ends it at once; the others notice an error.
  void abort() noexcept;

 private:
  enum class Step : std::uint8_t { kConnecting, kRegistering, kReady, kAborted };

  void check_ready() const REQUIRES(mutex_);
  void give_up() noexcept REQUIRES(mutex_);

  const std::shared_ptr<const NcclLibrary> library_;
  const std::shared_ptr<const CudaDevice> device_;
  const std::size_t nbytes_;
  DeviceAddress memory_ = 0;
  CudaStream stream_ = nullptr;
  mutable Mutex mutex_;
  Step step_ GUARDED_BY(mutex_) = Step::kConnecting;
  std::unique_ptr<NcclComm> comm_ GUARDED_BY(mutex_);
  NcclWindowHandle window_ GUARDED_BY(mutex_) = nullptr;
};

}  // namespace bluecomm::device
