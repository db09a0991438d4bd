#include "device/nccl_puts.h"

#include <utility>

namespace bluecomm::device {

NcclPuts::NcclPuts(std::shared_ptr<const NcclLibrary> library,
                   std::shared_ptr<const CudaDevice> device, std::size_t nbytes)
    : library_(std::move(library)), device_(std::move(device)), nbytes_(nbytes) {
  const NcclPutFunctions& puts = library_->puts();
  const ContextScope scope(*device_);
  void* memory = nullptr;
  library_->check(puts.allocate(&memory, nbytes_), "ncclMemAlloc", nullptr);
  try {
    stream_ = device_->create_stream();
  } catch (const CudaError&) {
    puts.free(memory);
    throw;
  }
  memory_ = reinterpret_cast<DeviceAddress>(memory);
}

void NcclPuts::connect(const NcclId& id, int rank, int size) {
  const LockGuard lock(mutex_);
  const ContextScope scope(*device_);
  comm_ = std::make_unique<NcclComm>(library_, id, rank, size);
}

NcclPuts::~NcclPuts() {
  if (device_->in_child()) {
    static_cast<void>(comm_.release());
    return;
  }
  abort();
  try {
    const ContextScope scope(*device_);
    library_->puts().free(reinterpret_cast<void*>(memory_));
  } catch (const CudaError&) {
    // CUDA has ended before this object.
  }
  device_->destroy_stream(stream_);
}

bool NcclPuts::advance() {
  const LockGuard lock(mutex_);
  if (step_ == Step::kAborted) throw NcclError("NCCL's communicator was aborted");
  const ContextScope scope(*device_);
  try {
    if (!comm_->is_settled()) return false;
    if (step_ == Step::kConnecting) {
      step_ = Step::kRegistering;
      comm_->register_window(memory_, nbytes_, window_);
      if (!comm_->is_settled()) return false;
    }
    if (step_ == Step::kRegistering && window_ == nullptr) {
      throw NcclError(
          "ncclCommWindowRegister returned no window, because the GPUs and the network "
          "between them have no one-sided puts");
    }
    step_ = Step::kReady;
    return true;
  } catch (...) {
    give_up();
    throw;
  }
}

void NcclPuts::put(int peer, std::size_t from, std::size_t to, std::size_t nbytes,
                   CudaStream stream) {
  const LockGuard lock(mutex_);
  check_ready();
  const ContextScope scope(*device_);
  try {
    device_->point_behind(stream)->precede(stream_);
    comm_->put(memory_ + from, nbytes, peer, window_, to, stream_);
  } catch (...) {
    give_up();
    throw;
  }
}

void NcclPuts::await_puts(int peer, int count) {
  const LockGuard lock(mutex_);
  check_ready();
  const ContextScope scope(*device_);
  try {
    comm_->await_signals(peer, count, stream_);
  } catch (...) {
    give_up();
    throw;
  }
}

std::shared_ptr<StreamPoint> NcclPuts::point() const {
  return device_->point_behind(stream_);
}

void NcclPuts::close() {
  const LockGuard lock(mutex_);
  check_ready();
  const ContextScope scope(*device_);
  try {
    comm_->deregister_window(window_);
    comm_->finalize();
  } catch (...) {
    give_up();
    throw;
  }
}

void NcclPuts::abort() noexcept {
  const LockGuard lock(mutex_);
  give_up();
}

void NcclPuts::check_ready() const {
  if (step_ != Step::kReady) throw NcclError("NCCL's communicator was aborted");
}

void NcclPuts::give_up() noexcept {
  step_ = Step::kAborted;
  if (comm_ == nullptr) return;
  try {
    const ContextScope scope(*device_);
    comm_->abort();
  } catch (const CudaError&) {
    // CUDA has ended before this object.
  }
}

}  // namespace bluecomm::device
